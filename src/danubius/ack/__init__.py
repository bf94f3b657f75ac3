"""Acknowledgements: what was settled, what is in flight, and what comes again."""
