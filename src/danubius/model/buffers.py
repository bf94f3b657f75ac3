"""Memory as it is handed on from socket to disk: whatever its owner, it is read through this."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
"""Anything bytes-like; a memoryview must be of single bytes, so that len() is its size."""
