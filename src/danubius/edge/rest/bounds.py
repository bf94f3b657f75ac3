"""Every bound of the REST interface, and the gates that keep to those that count what is under way."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from danubius.errors import Overloaded
from danubius.model.limits import KIB, MESSAGE_BYTES_MAX, MIB

if TYPE_CHECKING:
    from collections.abc import Generator

BODY_BYTES_MAX: Final = 1 * MIB
"""Of requests that carry no messages."""
MESSAGES_BODY_BYTES_MAX: Final = 4 * MIB
"""JSON is read on the broker's loop: at this size it takes about as long as a large batch takes."""
BINARY_BODY_BYTES_MAX: Final = MESSAGE_BYTES_MAX
BODIES_BYTES_MAX: Final = 64 * MIB
"""Of all requests that are being answered, and as much of those that are being read."""
UNFINISHED_BODIES_MAX: Final = 500
"""Bodies that are being read; of more, the one that began longest ago goes."""
SMALL_BODY_BYTES: Final = 64 * KIB
"""What is here of a body is not counted up to this: their number bounds it, and large ones cannot crowd them out."""
ANSWERS_BYTES_MAX: Final = 128 * MIB
"""Of all answers that are being sent."""
PIECE_BYTES: Final = 64 * KIB
"""An answer is sent in pieces of this size, so that a slow reader does not pile it up in a buffer."""
HEADER_BYTES_MAX: Final = 64 * KIB
"""Of one request: its first line and all its headers."""

CONNECTIONS_MAX: Final = 2_000
"""Open at once; when another comes, the one goes that has been without a request for longest."""
REQUESTS_MAX: Final = 1_000
"""Under way at once, waiting ones included."""
WAITS_MAX: Final = 500
"""Long polls under way."""
TAILS_MAX: Final = 100
"""Streams of server-sent events."""
SESSIONS_MAX: Final = 500
"""Consumers that live from one request to the next."""
PRODUCERS_MAX: Final = 1_000
"""Kept open between requests; the one used longest ago goes first."""

HEADER_S: Final = 10.0
"""From the first byte of a request, or the connection's start, to the end of its headers."""
BODY_S: Final = 30.0
"""For a request's body to arrive."""
BODY_FIRST_S: Final = 5.0
"""For the first of it,"""
BODY_BYTES_PER_S: Final = 4 * KIB
"""and from then on for so much a second."""
BODY_PATIENCE_S: Final = 1.0
"""While bodies have no room left, one that has been arriving for longer than this gives way."""
REQUEST_S: Final = 60.0
"""For an answer, beside what the request itself asks to wait."""
SEND_S: Final = 10.0
"""For a reader to take a piece of an answer or a stream; a slower one is cut off."""
READY_S: Final = 10.0
"""For the broker to have room for what is to be published."""
IDLE_PRODUCER_S: Final = 5.0
"""A producer that publishes for HTTP leaves after this long, so that it keeps no exclusive one out."""
STOP_S: Final = 2
"""For requests that are under way when the broker stops."""

WAIT_MS_MAX: Final = 30_000
"""Of a long poll: below the time-outs of usual proxies."""
HEARTBEAT_S: Final = 15.0
"""A stream without messages sends a comment this often."""
TAIL_MS_MAX: Final = 3_600_000
"""A stream ends after an hour; the reader comes back with Last-Event-ID."""
MESSAGES_MAX: Final = 1_000
"""In one answer."""
ANSWER_BYTES_MAX: Final = 1 * MIB
"""Of the messages in one answer, before they become text, unless the first is larger."""
FETCH_BYTES: Final = 256 * KIB
"""Read at once for a stream."""
SESSION_BYTES: Final = 1 * MIB
"""What a consumer session takes before anybody asks for it."""
ON_THREAD_BYTES: Final = 1 * MIB
"""A batch larger than this is unpacked on a thread."""


class Gate:
    """Counts what is under way, and lets in no more than there is room for."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self.taken = 0

    @contextlib.contextmanager
    def take(self, amount: int = 1) -> Generator[None]:
        """Overloaded if it does not fit."""
        if self.taken + amount > self._most:
            raise Overloaded(
                f"the broker has room for {self._most:,} {self._what} over HTTP; try again in a second"
            )
        self.taken += amount
        try:
            yield
        finally:
            self.taken -= amount
