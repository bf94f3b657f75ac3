"""Sans-IO: ranges of offsets, the cursor, what is in flight and what comes again."""
