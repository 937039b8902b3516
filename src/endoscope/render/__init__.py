"""How values are drawn: by what they are, or by a renderer that was registered for their debugger."""

from endoscope.render.numbers import Numbers
from endoscope.render.pictures import Picture
from endoscope.render.registry import About, Renderer, View, register, unregister

__all__ = ["About", "Numbers", "Picture", "Renderer", "View", "register", "unregister"]
