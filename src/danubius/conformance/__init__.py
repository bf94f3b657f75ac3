"""Conformance of drivers: checks for authors of object and ledger stores (`python -m danubius.conformance`)."""
