"""What the ledgers decide, without a clock, a thread or a file."""
