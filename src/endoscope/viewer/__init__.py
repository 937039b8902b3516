"""The eval viewer: a local web page over the folders of runs. Reads; needs neither the model nor the user's code."""
