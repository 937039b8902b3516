"""What a run keeps in its folder to be resumed and shown."""
