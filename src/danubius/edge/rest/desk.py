"""The desk of all REST endpoints: the ways into the broker, and the counts of what is under way."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from danubius.edge.in_process import Line
from danubius.edge.rest.bodies import Bodies
from danubius.edge.rest.bounds import (
    ANSWERS_BYTES_MAX,
    BODIES_BYTES_MAX,
    REQUESTS_MAX,
    TAILS_MAX,
    WAITS_MAX,
    Gate,
)
from danubius.edge.rest.publishing import Publisher
from danubius.edge.rest.sessions import ConsumerSessions
from danubius.errors import InvalidArgument
from danubius.model.admin_codec import decode_request, encode_request

if TYPE_CHECKING:
    from collections.abc import Generator

    from danubius.model.admin import AdminRequest
    from danubius.session.door import Door


class Desk:
    """The REST interface's hold on one broker."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._lines: set[Line] = set()
        self.publisher = Publisher(door)
        self.sessions = ConsumerSessions(door)
        self.stopping = asyncio.Event()
        self.requests = Gate("requests", REQUESTS_MAX)
        self.waits = Gate("requests that wait", WAITS_MAX)
        self.tails = Gate("streams", TAILS_MAX)
        self.bodies = Bodies()
        self.body_bytes = Gate("bytes of requests", BODIES_BYTES_MAX)
        self.answers = Gate("bytes of answers", ANSWERS_BYTES_MAX)

    async def administer(self, request: AdminRequest) -> Any:
        """What the broker answers to an operator; its error is raised."""
        request.check()
        # The way through the wire's codec: JSON knows numbers that MessagePack cannot keep.
        try:
            checked = decode_request(encode_request(request))
        except OverflowError as problem:
            raise InvalidArgument(
                "a number of the request is out of range; it must fit 64 bits"
            ) from problem
        return await self._door.administer(checked)

    @contextlib.contextmanager
    def line(self) -> Generator[Line]:
        """A connection of one request."""
        line = self.open_line()
        try:
            yield line
        finally:
            self.close_line(line)

    def open_line(self) -> Line:
        line = Line(self._door, "http")
        self._lines.add(line)
        return line

    def close_line(self, line: Line) -> None:
        self._lines.discard(line)
        line.close()

    def stop(self) -> None:
        """Whoever waits is sent away; what is being published may still be answered."""
        self.stopping.set()
        self.sessions.close()
        for line in list(self._lines):
            line.close()

    def close(self) -> None:
        self.stop()
        self.publisher.close()
