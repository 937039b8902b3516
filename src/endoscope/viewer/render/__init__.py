"""How values are drawn: by what they are, or by a renderer that was registered for their debugger."""

from endoscope.viewer.render.numbers import Numbers
from endoscope.viewer.render.pictures import Picture
from endoscope.viewer.render.registry import About, Renderer, View, register, unregister

__all__ = ["About", "Numbers", "Picture", "Renderer", "View", "register", "unregister"]
