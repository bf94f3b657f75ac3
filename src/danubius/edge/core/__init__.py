"""Decisions of the ports about whom to let in, without a socket or a clock."""
