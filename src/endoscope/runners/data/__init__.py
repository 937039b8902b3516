"""Batches of datapoints from any dataset."""
