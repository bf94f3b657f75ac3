"""Decisions of the client, without a clock, dice or a socket."""
