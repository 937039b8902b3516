"""The config of a run: its file, its keys, its description as JSON."""
