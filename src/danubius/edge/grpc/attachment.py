"""One consumer of Danube's clients on its subscription, from its subscribing to the end of its stream.

It is a consumer like any other: a line, a handle, credit. What was delivered waits here, as batches, for the reader of
the stream; credit is given back as that takes it, so a reader that stalls holds up nothing but its own share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from danubius.ack.core.ranges import RangeSet
from danubius.edge.grpc.bounds import (
    LOSSY_STREAM_BYTES,
    LOSSY_STREAM_MESSAGES,
    STREAM_BYTES,
    STREAM_MESSAGES,
    TOO_LARGE_RETRY_MS,
)
from danubius.edge.grpc.delivering import Packer, cuts
from danubius.edge.line import Line
from danubius.errors import ClientClosed, DanubiusError, error_from_code
from danubius.model.subscription import LATEST
from danubius.wire.commands import (
    Ack,
    CloseConsumer,
    ConsumerClosed,
    Deliver,
    Flow,
    Nack,
    Subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from danubius.broker.node import Node
    from danubius.broker.peer import Buffer
    from danubius.broker.topic import Topic
    from danubius.edge.grpc.consumer_book import Known
    from danubius.model.policy import FailurePolicy
    from danubius.wire.commands import AnyCommand

_TOO_LARGE = "it is larger than what clients of Danube take"


class _Delivery(NamedTuple):
    command: Deliver
    payload: Sequence[Buffer]
    size: int


class Attachment:
    """A consumer that is attached, until it is closed or the broker ends it."""

    def __init__(
        self,
        node: Node,
        known: Known,
        broker_url: str,
        on_ended: Callable[[Attachment], None],
        address: str,
    ) -> None:
        self.known = known
        self._broker_url = broker_url
        self._broker = node.broker
        self._line = Line(node, address, self._heard)
        self._on_ended = on_ended
        self._handle = 0
        self._held: deque[_Delivery] = deque()
        self._arrived = asyncio.Event()
        self._owed_messages = 0
        self._owed_bytes = 0
        self._credit = (0, 0)
        self._topic: Topic
        self._unacked = RangeSet()
        """What its client was sent and has not answered."""
        self.ended: DanubiusError | None = None
        """Why it is over."""

    async def open(self, failure: FailurePolicy | None) -> None:
        """Attach it; creates the subscription, at the end of the topic, if there is none."""
        known = self.known
        topic = self._broker.topic(known.topic)
        if topic.is_reliable:
            self._credit = (STREAM_MESSAGES, STREAM_BYTES)
        else:
            self._credit, failure = (LOSSY_STREAM_MESSAGES, LOSSY_STREAM_BYTES), None
        try:
            answer = await self._line.ask(
                Subscribe(
                    known.topic,
                    known.subscription,
                    known.type,
                    known.consumer,
                    LATEST,
                    key_filters=known.key_filters,
                    failure=failure,
                )
            )
        except BaseException:
            self._line.close()
            raise
        self._topic = topic
        self._handle = answer.command.handle

    def close(self, reason: DanubiusError, *, is_clean: bool = False) -> None:
        """Leave; what was not acknowledged goes to others at once."""
        if self.ended is None:
            self.ended = reason
        if is_clean:
            self._line.tell(CloseConsumer(self._handle))
        self._line.close()
        self._held.clear()
        self._arrived.set()
        self._on_ended(self)

    # ------------------------------------------------------------ delivering

    async def deliver(self, write: Callable[[Any], Awaitable[None]]) -> DanubiusError:
        """Write what is delivered, message by message, until it is over; returns why."""
        self._owed_messages, self._owed_bytes = self._credit
        self._grant()
        packer = Packer(self._topic, self._broker_url)
        while True:
            while self._held:
                command, payload, size = self._held.popleft()
                for cut in cuts(payload, command.first, command.end):
                    for offset, message in await packer.pack(cut):
                        if self.ended is not None:
                            return self.ended
                        await self._write(offset, message, write)
                self._owed_messages += command.messages
                self._owed_bytes += size
                self._grant()
            if self.ended is not None:
                return self.ended
            self._arrived.clear()
            await self._arrived.wait()

    async def _write(
        self, offset: int, message: Any | None, write: Callable[[Any], Awaitable[None]]
    ) -> None:
        if message is None:
            self._refuse(offset)
            return
        if self._topic.is_reliable:
            self._unacked.add(offset, offset + 1)
        await write(message)

    def _grant(self) -> None:
        """Give back what is owed, once it is half of all credit."""
        messages, size = self._credit
        is_due = self._owed_messages * 2 >= messages or self._owed_bytes * 2 >= size
        if is_due and self.ended is None:
            self._line.tell(Flow(self._handle, self._owed_messages, self._owed_bytes))
            self._owed_messages = self._owed_bytes = 0

    def _refuse(self, offset: int) -> None:
        """These clients cannot take it: others may, and a failure policy may set it aside."""
        ranges = [(offset, offset + 1)]
        self._line.tell(Nack(self._handle, ranges, TOO_LARGE_RETRY_MS, _TOO_LARGE))

    def _heard(self, command: AnyCommand, payload: Sequence[Buffer]) -> None:
        if isinstance(command, Deliver):
            self._held.append(_Delivery(command, payload, sum(map(len, payload))))
            self._arrived.set()
        elif isinstance(command, ConsumerClosed) and self.ended is None:
            self.ended = error_from_code(command.code, command.message)
            self._broker.loop.call_soon(self.close, self.ended)  # the broker is in the middle of it

    # ------------------------------------------------------------ settling

    def holds(self, offset: int) -> bool:
        return offset in self._unacked

    def ack(self, offset: int) -> None:
        self._unacked.remove(offset, offset + 1)
        self._line.tell(Ack(self._handle, [(offset, offset + 1)]))

    def nack(self, offset: int, delay_ms: int, reason: str) -> None:
        self._unacked.remove(offset, offset + 1)
        self._line.tell(Nack(self._handle, [(offset, offset + 1)], delay_ms, reason))


REPLACED = ClientClosed("another stream of this consumer took over")
LEFT = ClientClosed("the client ended its stream")
