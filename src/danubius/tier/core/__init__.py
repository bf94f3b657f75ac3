"""Decisions of cold storage, and the layout of its objects: no loop, no clock, no OS."""
