"""Cold storage: sealed ledgers as objects, wherever objects are kept."""
