"""One consumer of Danube's clients on its subscription, from its subscribing to the end of its stream.

It is a consumer like any other: a line, a handle, credit. What was delivered waits here, as batches, for the reader of
the stream; credit is given back as that takes it, so a reader that stalls holds up nothing but its own share. Of a
reliable topic, what its client has and has not acknowledged counts too: clients read far ahead of what they work on,
and what waits there for longer than the ack time-out would come again. Invariant: granted, held and unacknowledged
messages are together no more than the stream may have open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from danubius.edge.grpc.bounds import (
    GRANT_S,
    LOSSY_STREAM_BYTES,
    LOSSY_STREAM_MESSAGES,
    OPEN_MESSAGES,
    STALLED_S,
    STREAM_BYTES,
    TOO_LARGE_RETRY_MS,
)
from danubius.edge.grpc.data.delivering import Packer, cuts
from danubius.edge.in_process import Line
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

    from danubius.edge.grpc.data.consumer_book import Known
    from danubius.model.buffers import Buffer
    from danubius.model.policy import FailurePolicy
    from danubius.session.door import Door
    from danubius.session.found import FoundTopic
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
        door: Door,
        known: Known,
        broker_url: str,
        on_ended: Callable[[Attachment], None],
        address: str,
    ) -> None:
        self.known = known
        self._broker_url = broker_url
        self._door = door
        self._line = Line(door, address, self._heard)
        self._on_ended = on_ended
        self._handle = 0
        self._held: deque[_Delivery] = deque()
        self._arrived = asyncio.Event()
        self._granted = 0
        """Messages asked for and not delivered."""
        self._waiting = 0
        """Messages delivered here and not sent."""
        self._owed_bytes = 0
        self._late: asyncio.TimerHandle | None = None
        """Set while freed room waits for more of it."""
        self._topic: FoundTopic
        self._unacked: set[int] = set()
        """What its client was sent and has not answered, of a reliable topic."""
        self.ended: DanubiusError | None = None
        """Why it is over."""

    async def open(self, failure: FailurePolicy | None) -> None:
        """Attach it; creates the subscription, at the end of the topic, if there is none."""
        known = self.known
        topic = self._door.topic(known.topic)
        if not topic.is_reliable:
            failure = None
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
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._line.close()
        self._held.clear()
        self._arrived.set()
        self._on_ended(self)

    # ------------------------------------------------------------ delivering

    async def deliver(self, write: Callable[[Any], Awaitable[None]]) -> DanubiusError:
        """Write what is delivered, message by message, until it is over; returns why."""
        self._owed_bytes = STREAM_BYTES if self._topic.is_reliable else LOSSY_STREAM_BYTES
        self._grant()
        name = self._topic.name
        packer = Packer(self._topic, self._broker_url, lambda: self._door.producer_names(name))
        while True:
            while self._held:
                command, payload, size = self._held.popleft()
                for cut in cuts(payload, command.first, command.end):
                    for offset, message in await packer.pack(cut):
                        if self.ended is not None:
                            return self.ended
                        await self._write(offset, message, write)
                self._owed_bytes += size
                self._grant()
            if self.ended is not None:
                return self.ended
            await self._wait()

    async def _wait(self) -> None:
        """Until something is delivered, or it is over."""
        self._arrived.clear()
        if self._granted or self._late is not None:
            await self._arrived.wait()
            return
        # Its client has all it may have. What it let time out may have been acknowledged by others meanwhile.
        try:
            async with asyncio.timeout(STALLED_S):
                await self._arrived.wait()
        except TimeoutError:
            self._unacked = self._line.session.still_unacked(self._handle, self._unacked)
            self._grant()

    async def _write(
        self, offset: int, message: Any | None, write: Callable[[Any], Awaitable[None]]
    ) -> None:
        self._waiting -= 1
        if message is None:
            self._refuse(offset)
            return
        if self._topic.is_reliable:
            self._unacked.add(offset)
        await write(message)

    def _open_max(self) -> int:
        """How many messages the stream may have open: by default, or as the subscription was told."""
        if not self._topic.is_reliable:
            return LOSSY_STREAM_MESSAGES
        told = self._line.session.unacked_messages_max(self._handle)
        return OPEN_MESSAGES if told is None else max(OPEN_MESSAGES, told)

    def _grant(self, *, is_late: bool = False) -> None:
        """Give back what is free, once it is half of all that may be open, or a moment later.

        Acknowledgements come one by one: what they free goes back together, so that deliveries are not of one message.
        """
        if self.ended is not None:
            return
        most = self._open_max()
        room = max(0, most - self._granted - self._waiting - len(self._unacked))
        if room * 2 < most and not is_late:
            if room and self._late is None:
                self._late = self._door.loop.call_later(GRANT_S, self._grant_late)
            room = 0
        if room or self._owed_bytes * 2 >= STREAM_BYTES:
            self._granted += room
            owed, self._owed_bytes = self._owed_bytes, 0
            self._line.tell(Flow(self._handle, room, owed))

    def _grant_late(self) -> None:
        self._late = None
        self._grant(is_late=True)

    def _refuse(self, offset: int) -> None:
        """These clients cannot take it: others may, and a failure policy may set it aside."""
        ranges = [(offset, offset + 1)]
        self._line.tell(Nack(self._handle, ranges, TOO_LARGE_RETRY_MS, _TOO_LARGE))

    def _heard(self, command: AnyCommand, payload: Sequence[Buffer]) -> None:
        if isinstance(command, Deliver):
            self._granted -= command.messages
            self._waiting += command.messages
            self._held.append(_Delivery(command, payload, sum(map(len, payload))))
            self._arrived.set()
        elif isinstance(command, ConsumerClosed) and self.ended is None:
            self.ended = error_from_code(command.code, command.message)
            self._door.loop.call_soon(self.close, self.ended)  # the broker is in the middle of it

    # ------------------------------------------------------------ settling

    def holds(self, offset: int) -> bool:
        return offset in self._unacked

    def ack(self, offset: int) -> None:
        self._unacked.discard(offset)
        self._line.tell(Ack(self._handle, [(offset, offset + 1)]))
        self._grant()

    def nack(self, offset: int, delay_ms: int, reason: str) -> None:
        self._unacked.discard(offset)
        self._line.tell(Nack(self._handle, [(offset, offset + 1)], delay_ms, reason))
        self._grant()


REPLACED = ClientClosed("another stream of this consumer took over")
LEFT = ClientClosed("the client ended its stream")
