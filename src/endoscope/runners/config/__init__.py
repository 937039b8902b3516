"""The config of a run: its keys, its file, its text."""
