"""Transactions for programs without an event loop."""

# A transaction speaks for producers and consumers: it needs those behind the blocking ones.
# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from danubius.client.blocking.loop_thread import LoopThread
    from danubius.client.consuming.consumer import Consumer
    from danubius.client.messages import Message, ReceivedBatch
    from danubius.client.options import TimeToLive
    from danubius.client.producing.producer import Producer
    from danubius.client.transactions.transaction import Transaction


class BlockingProducer(Protocol):
    """A `danubius.blocking.Producer`."""

    _producer: Producer


class BlockingConsumer(Protocol):
    """A `danubius.blocking.Consumer`."""

    _consumer: Consumer


class BlockingTransaction:
    """Messages and acknowledgements that take effect together, or not at all. See `danubius.Client.transaction`."""

    def __init__(self, loop: LoopThread, transaction: Transaction) -> None:
        self._loop = loop
        self._transaction = transaction

    @property
    def id(self) -> int:
        return self._transaction.id

    def send(
        self,
        producer: BlockingProducer,
        payload: bytes,
        *,
        key: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        """Send one message when the transaction commits."""
        self._loop.run(
            self._transaction.send(
                producer._producer, payload, key=key, attributes=attributes, ttl=ttl
            )
        )

    def send_many(
        self,
        producer: BlockingProducer,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
        ttl: TimeToLive | None = None,
    ) -> None:
        """Send many messages when the transaction commits."""
        self._loop.run(
            self._transaction.send_many(
                producer._producer, payloads, keys=keys, attributes=attributes, ttl=ttl
            )
        )

    def ack(self, consumer: BlockingConsumer, message: Message | ReceivedBatch) -> None:
        """Acknowledge a message or a batch when the transaction commits."""
        self._loop.run(self._transaction.ack(consumer._consumer, message))

    def commit(self) -> None:
        """Make everything durable and visible at once."""
        self._loop.run(self._transaction.commit())

    def abort(self) -> None:
        """Forget everything; the messages acknowledged inside are delivered again."""
        self._loop.run(self._transaction.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, trace))
