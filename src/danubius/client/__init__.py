"""What users' programs run: connections, producers, consumers and readers. `danubius/__init__.py` is the way in."""
