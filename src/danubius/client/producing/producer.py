"""The producer as its users see it: one interface over one lane or several.

A plain topic's producer *is* its lane (`ProducerLane`), so that it pays nothing for there being partitioned topics; a
partitioned topic's is a `PartitionedProducer` over a lane for each partition. Which of them it is, is known when it
is opened and does not change: a topic cannot become partitioned while it lives.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Self

from danubius.errors import DanubiusError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from danubius.client.messages import Receipt, Receipts
    from danubius.client.options import (
        DeliverAfter,
        DeliverAfterMany,
        DeliverAtMany,
        TimeToLive,
    )

_HASTY_FLUSH_S: Final = 2.0
"""How long the end of an `async with` block waits for open batches when its body failed."""


class Producer(ABC):
    """Sends messages to one topic. Made by `client.producer(...)`.

    Example:
        async with client.producer("/default/orders") as producer:
            receipt = await producer.send(b"first", key=b"customer-7")
    """

    is_traced: ClassVar[bool] = False
    """Whether what is sent carries the context of a span."""

    def carry(self, attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """The attributes that a message goes with; of a traced producer, with the current context in them."""
        return attributes

    @property
    @abstractmethod
    def topic(self) -> str:
        """The topic's name, as it was given."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which the broker recognises repeated batches."""

    @property
    @abstractmethod
    def buffer_bytes(self) -> int:
        """How many bytes may wait for their acknowledgement."""

    @property
    @abstractmethod
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet acknowledged."""

    @property
    @abstractmethod
    def next_sequence(self) -> int:
        """The number of the next message.

        Opened with `resume=True`, it is how many messages are stored under this name: a loader that was killed goes on
        with the message of that number, and each is stored once.
        """

    @abstractmethod
    async def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipt:
        """Send one message and return once it is as durable as its topic asks.

        Concurrent sends share a batch. Cancelling the wait does not take the message back. Of a partitioned topic,
        messages with one key go to one partition, those without a key to each in turn.

        With `deliver_after` (seconds or a timedelta) or `deliver_at` (an aware datetime) the message is stored now and
        published when it is due: not before, and later by 0.2 % of the delay at the most. It gets its offset then, so
        the receipt has none: `receipt.is_scheduled`. Reliable topics only.

        With `ttl` (seconds or a timedelta) it is not delivered to consumers later than that after its publish time, and
        counts as acknowledged from then on.

        A producer opened with `chunk_bytes` sends a message that is larger than that in pieces, which consumers and
        readers put together; the receipt's offset is that of the last piece. Not together with a delay.

        Raises:
            MessageTooLarge: payload, key and attributes together are over the broker's limit.
            DeadlineExceeded: no answer came within `send_timeout`; it may still have been stored.
            StorageFull, StorageFailed, Overloaded: the broker kept refusing it for `send_timeout`.
            ProducerFenced: another producer of the same name took over.
        """

    @abstractmethod
    def send_nowait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        deliver_after: DeliverAfter | None = None,
        deliver_at: datetime | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        """Put one message into the open batch and return at once; `await flush()` waits for all of them.

        The batch leaves when the loop turns, so let it turn: a loop of `send_nowait` without any await only fills the
        buffer.

        Raises:
            Overloaded: `buffer_bytes` are not acknowledged yet; await flush() or use send().
        """

    @abstractmethod
    async def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        deliver_after: DeliverAfterMany | None = None,
        deliver_at: DeliverAtMany | None = None,
        ttl: TimeToLive | None = None,
    ) -> Receipts:
        """Send many messages in as few batches as possible and wait until all are stored.

        `deliver_after` and `deliver_at` are one for all, or a list with one for each; `ttl` is one for all. Waits while
        the buffer is full. Messages that have to be sent in pieces are for `send`.
        On an error some of the messages may have been stored; the error's notes say how many were.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged.

        Raises the first error, since the last flush, that nobody waited for: of messages sent with send_nowait(), or
        by a call that was cancelled.
        """

    @abstractmethod
    async def close(self) -> None:
        """Flush, then let go of the topic. Closing twice waits for the same end, and raises nothing the second time."""

    @abstractmethod
    async def open(self) -> None:
        """Attach to the topic; `client.producer(...)` does it."""

    @abstractmethod
    def check(
        self, payload: bytes, key: bytes | None, attributes: Mapping[str, str] | None
    ) -> tuple[bytes, int]:
        """Refuse a message that cannot be sent; return it as bytes, with the size it counts for."""

    @abstractmethod
    def put_nowait(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: Mapping[str, str] | None,
        size: int,
        due_ms: int | None = None,
        ttl_us: int = 0,
    ) -> None:
        """Take a checked message from a caller that cannot be told of a failure: `flush` tells it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        # The body's error is the one to show; what was sent before it still gets a moment to arrive.
        try:
            async with asyncio.timeout(_HASTY_FLUSH_S):
                await self.close()
        except (DanubiusError, TimeoutError):
            pass
