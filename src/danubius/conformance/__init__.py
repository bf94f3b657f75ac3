"""What makes a driver one: checks for authors of object and ledger stores (`python -m danubius.conformance`)."""
