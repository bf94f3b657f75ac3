"""Danubius: a durable publish-subscribe system.

    import danubius

    async with danubius.connect("danube://127.0.0.1:6651") as client:
        async with client.producer("/default/orders") as producer:
            await producer.send(b"hello")

`danubius.blocking` is the same without `async`. The names are loaded when they are first used, so that importing the
package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from danubius.errors import (
    BrokerUnavailable,
    ClientClosed,
    ConsumerReplaced,
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    InvalidBatch,
    InvalidName,
    LedgerDamaged,
    MessageTooLarge,
    OffsetOutOfRange,
    Overloaded,
    ProducerFenced,
    ProtocolViolation,
    Retry,
    ShuttingDown,
    StorageFailed,
    StorageFull,
    SubscriptionBusy,
    SubscriptionNotFound,
    SubscriptionTypeMismatch,
    TooManyConnections,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
    UnknownError,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from danubius import blocking
    from danubius.client.client import Client, connect
    from danubius.client.consumer import Consumer
    from danubius.client.messages import Message, Receipt, Receipts, ReceivedBatch
    from danubius.client.producer import Producer
    from danubius.client.reader import Reader
    from danubius.client.timeouts import ReceiveTimeout
    from danubius.client.version import VERSION as __version__  # noqa: N811  # its public name
    from danubius.model.policy import Backoff, Exhausted, FailurePolicy
    from danubius.wire.commands import SubscriptionSummary, TopicDescribed, TopicSummary

__all__ = [
    "Backoff",
    "BrokerUnavailable",
    "Client",
    "ClientClosed",
    "Consumer",
    "ConsumerReplaced",
    "DanubiusError",
    "DeadlineExceeded",
    "Exhausted",
    "FailurePolicy",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidName",
    "LedgerDamaged",
    "Message",
    "MessageTooLarge",
    "OffsetOutOfRange",
    "Overloaded",
    "Producer",
    "ProducerFenced",
    "ProtocolViolation",
    "Reader",
    "Receipt",
    "Receipts",
    "ReceiveTimeout",
    "ReceivedBatch",
    "Retry",
    "ShuttingDown",
    "StorageFailed",
    "StorageFull",
    "SubscriptionBusy",
    "SubscriptionNotFound",
    "SubscriptionSummary",
    "SubscriptionTypeMismatch",
    "TooManyConnections",
    "TopicDeleted",
    "TopicDescribed",
    "TopicExists",
    "TopicNotFound",
    "TopicSummary",
    "UnknownError",
    "UnsupportedVersion",
    "__version__",
    "blocking",
    "connect",
]

_HOMES: Final = {
    "Backoff": "danubius.model.policy",
    "Exhausted": "danubius.model.policy",
    "FailurePolicy": "danubius.model.policy",
    "Client": "danubius.client.client",
    "Consumer": "danubius.client.consumer",
    "Message": "danubius.client.messages",
    "Producer": "danubius.client.producer",
    "Reader": "danubius.client.reader",
    "Receipt": "danubius.client.messages",
    "Receipts": "danubius.client.messages",
    "ReceiveTimeout": "danubius.client.timeouts",
    "ReceivedBatch": "danubius.client.messages",
    "SubscriptionSummary": "danubius.wire.commands",
    "TopicDescribed": "danubius.wire.commands",
    "TopicSummary": "danubius.wire.commands",
    "connect": "danubius.client.client",
}
"""Where the names live that are loaded on first use."""


if not TYPE_CHECKING:  # a type checker takes the imports above, and finds misspelt names

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used, and keep it."""
        if name == "blocking":
            return import_module("danubius.blocking")
        if name == "__version__":
            return import_module("danubius.client.version").VERSION
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'danubius' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
