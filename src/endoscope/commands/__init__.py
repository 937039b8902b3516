"""The subcommands of ``endoscope``, one module each, and what they share. Importing this imports nothing heavy."""
