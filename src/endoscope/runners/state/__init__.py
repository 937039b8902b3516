"""The state of a run in its folder: what resuming needs, and what the viewer shows."""
