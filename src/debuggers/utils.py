"""Re-exports `endoscope.layers.get_layer_by_name` and `endoscope.values.apply_tensor_op`."""

from endoscope.layers import get_layer_by_name
from endoscope.values import apply_tensor_op

__all__ = ["apply_tensor_op", "get_layer_by_name"]
