"""Decisions of the ledgers, without a clock, a thread or a file."""
