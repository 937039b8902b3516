"""Any dataset to batches of datapoints."""
