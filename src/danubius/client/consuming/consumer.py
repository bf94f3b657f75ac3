"""The consumer as its users see it: one interface over one lane or several.

A plain topic's consumer *is* its lane (`ConsumerLane`); a partitioned topic's is a `PartitionedConsumer` that merges a
lane for each partition. A message's `topic` is that of its lane, and acknowledgements go by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from danubius.client.messages import Message, ReceivedBatch


class Consumer(ABC):
    """Receives the messages of one subscription. Made by `client.consumer(...)`.

    Example:
        async with client.consumer("/default/orders", subscription="billing") as consumer:
            async for message in consumer:
                await consumer.ack(message)
    """

    @property
    @abstractmethod
    def topic(self) -> str:
        """The topic's name, as it was given."""

    @property
    @abstractmethod
    def subscription(self) -> str:
        """The subscription's name."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which the broker knows this consumer, also after a reconnect."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """False while this consumer stands by in a failover subscription, or has no connection.

        Of a partitioned topic: whether it is active for any of the partitions.
        """

    @abstractmethod
    def generation_of(self, topic: str) -> int:
        """Rises when messages of this topic that were not yet handed out are taken back, to be delivered again."""

    # ------------------------------------------------------------ receiving

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Message: ...

    @abstractmethod
    async def receive(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
    ) -> Message:
        """Wait for one message.

        Raises:
            ReceiveTimeout: none came within `timeout` seconds. It is a TimeoutError too.
            ClientClosed: the consumer was closed.
            ConsumerReplaced, TopicDeleted, LedgerDamaged: the broker ended it.
        """

    @abstractmethod
    async def receive_batch(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the public word for it
        max_messages: int | None = None,
    ) -> ReceivedBatch:
        """Wait for messages and return them as columns: what one delivery brought, or at most `max_messages` of it.

        Raises what `receive` raises.
        """

    # ------------------------------------------------------------ acknowledging

    @abstractmethod
    async def ack(self, message: Message | ReceivedBatch) -> None:
        """Acknowledge a message or a batch: it will not be delivered again.

        Returns at once; acks leave together, a few milliseconds later at most. What the broker has not confirmed when
        the connection is lost is sent again after the reconnect; close() waits for the confirmation.
        """

    @abstractmethod
    async def ack_cumulative(self, message: Message | ReceivedBatch) -> None:
        """Acknowledge this message and all before it in the topic, delivered to this consumer or not.

        Of a partitioned topic: all before it in its partition.
        """

    @abstractmethod
    async def nack(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        """Ask for a message or a batch to be delivered again, after `delay` seconds or the failure policy's delay.

        With a failure policy it counts as failed; `reason` is kept with a message that ends as a dead letter.
        """

    @abstractmethod
    def ack_nowait(self, message: Message | ReceivedBatch) -> None:
        """`ack`, for callers that are not coroutines."""

    @abstractmethod
    def ack_cumulative_nowait(self, message: Message | ReceivedBatch) -> None:
        """`ack_cumulative`, for callers that are not coroutines."""

    @abstractmethod
    def nack_nowait(
        self, message: Message | ReceivedBatch, *, delay: float = 0.0, reason: str = ""
    ) -> None:
        """`nack`, for callers that are not coroutines."""

    @abstractmethod
    def check_own(self, message: Message | ReceivedBatch) -> None:
        """Raise if this message cannot be acknowledged here."""

    # ------------------------------------------------------------ life

    @abstractmethod
    async def open(self) -> None:
        """Subscribe; `client.consumer(...)` does it."""

    @abstractmethod
    async def close(self) -> None:
        """Send the last acks, wait until the broker has them, and leave the subscription.

        What was received and not acknowledged goes to other consumers, or to the next one. Closing twice does nothing.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
