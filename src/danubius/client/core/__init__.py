"""What the client decides, without a clock, dice or a socket."""
