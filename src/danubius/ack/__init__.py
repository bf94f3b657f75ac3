"""What was acknowledged, what is in flight, and what comes again."""
