"""What the model looked at."""

from endoscope.explain.gradcam import ClassActivationMap, GradCAM

__all__ = ["ClassActivationMap", "GradCAM"]
