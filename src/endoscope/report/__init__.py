"""Runs and datapoints as HTML: one page that opens from disk, and views for notebooks. No server."""
