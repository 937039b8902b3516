"""Draws values: as pictures, lines, tables or text, by what they are or by a renderer registered for their debugger.

Knows values only: no server, no file, no model.
"""

from endoscope.render.numbers import Numbers
from endoscope.render.pictures import Picture
from endoscope.render.registry import register, unregister
from endoscope.render.renderer import About, Renderer, View

__all__ = ["About", "Numbers", "Picture", "Renderer", "View", "register", "unregister"]
