"""The client that users' programs run. `danubius/__init__.py` is the way in."""
