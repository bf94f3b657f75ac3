"""What cold storage decides and how an object is laid out: no loop, no clock, no OS."""
