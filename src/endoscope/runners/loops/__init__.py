"""The loops of training and evaluation."""
