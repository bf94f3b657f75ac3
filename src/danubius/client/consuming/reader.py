"""The reader as its users see it: one interface over one lane or several.

A plain topic's reader *is* its lane (`ReaderLane`); a partitioned topic's is a `PartitionedReader` that merges a lane
for each partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from danubius.client.messages import Message, ReceivedBatch


class Reader(ABC):
    """Reads a topic from a position on. Made by `client.reader(...)`.

    Example:
        async with client.reader("/default/orders", start="earliest", stop_at_end=True) as reader:
            async for message in reader: ...
    """

    @property
    @abstractmethod
    def topic(self) -> str:
        """The topic's name, as it was given."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The offset of the next message that will be handed out: where to start a reader to go on from here.

        A partitioned topic has one for each partition: see `positions`.

        Raises:
            InvalidArgument: the topic is partitioned.
        """

    @property
    @abstractmethod
    def positions(self) -> dict[str, int]:
        """The `position` in each partition by its name; of a plain topic, the one there is."""

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Message: ...

    @abstractmethod
    async def read_batch(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
    ) -> ReceivedBatch | None:
        """Wait for messages and return them as columns; None once a reader with `stop_at_end` is there.

        Raises:
            ReceiveTimeout: nothing new came within `timeout` seconds. It is a TimeoutError too.
            OffsetOutOfRange: the messages at this position are gone.
            LedgerDamaged: the stored messages at this position fail their checksum.
        """

    @abstractmethod
    async def open(self) -> None:
        """Find the position; `client.reader(...)` does it."""

    @abstractmethod
    async def close(self) -> None:
        """Stop reading. Closing twice does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
