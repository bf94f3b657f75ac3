"""What the faces decide about whom to let in, without a socket or a clock."""
