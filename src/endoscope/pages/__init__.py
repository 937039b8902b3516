"""What was seen, on disk: the format of a page, its writer and its reader."""
