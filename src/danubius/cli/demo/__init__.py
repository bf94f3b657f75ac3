"""The demonstration: `danubius demo`."""
