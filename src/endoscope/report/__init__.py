"""A run or a datapoint as text, HTML and notebook views, without a server."""
