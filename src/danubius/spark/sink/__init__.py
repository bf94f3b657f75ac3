"""Writing to topics: what tasks stage, and the commits that publish it."""
