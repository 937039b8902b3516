"""What a model looked at: Grad-CAM."""

from endoscope.explain.gradcam import ClassActivationMap, GradCAM

__all__ = ["ClassActivationMap", "GradCAM"]
