"""The subcommands of ``endoscope``, one module per command, and what they share."""
