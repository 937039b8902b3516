"""Captures on disk: the page format, its writer and its reader."""
