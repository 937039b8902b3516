"""Ready metrics, one task a file."""
