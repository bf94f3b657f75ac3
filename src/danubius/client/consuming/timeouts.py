"""The error for a wait for messages that was given a time, and got none."""

from __future__ import annotations

from danubius.errors import DeadlineExceeded


class ReceiveTimeout(DeadlineExceeded, TimeoutError):
    """No message came in time. Nothing is wrong: call again. Caught by `except TimeoutError` as well."""
