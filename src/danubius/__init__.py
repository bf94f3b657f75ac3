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
    HandleNotFound,
    InvalidArgument,
    InvalidBatch,
    InvalidName,
    LedgerDamaged,
    LimitReached,
    MessageTooLarge,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    ObjectNotFound,
    OffsetOutOfRange,
    Overloaded,
    ProducerBusy,
    ProducerFenced,
    ProtocolViolation,
    QuotaExceeded,
    Retry,
    ShuttingDown,
    StageNotFound,
    StorageFailed,
    StorageFull,
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionMoved,
    SubscriptionNotFound,
    SubscriptionTypeMismatch,
    Throttled,
    TierMisconfigured,
    TooManyConnections,
    TopicDeleted,
    TopicExists,
    TopicMoved,
    TopicNotFound,
    TransactionAborted,
    TransactionConflict,
    TransactionNotFound,
    TransactionTooLarge,
    UnknownError,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from danubius import blocking
    from danubius.client import tracing as tracing
    from danubius.client.client import Client
    from danubius.client.connecting import connect
    from danubius.client.consuming.consumer import Consumer
    from danubius.client.consuming.reader import Reader
    from danubius.client.consuming.timeouts import ReceiveTimeout
    from danubius.client.messages import Message, Receipt, Receipts, ReceivedBatch
    from danubius.client.producing.producer import Producer
    from danubius.client.transactions.transaction import Transaction
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
    "HandleNotFound",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidName",
    "LedgerDamaged",
    "LimitReached",
    "Message",
    "MessageTooLarge",
    "NamespaceExists",
    "NamespaceNotEmpty",
    "NamespaceNotFound",
    "ObjectNotFound",
    "OffsetOutOfRange",
    "Overloaded",
    "Producer",
    "ProducerBusy",
    "ProducerFenced",
    "ProtocolViolation",
    "QuotaExceeded",
    "Reader",
    "Receipt",
    "Receipts",
    "ReceiveTimeout",
    "ReceivedBatch",
    "Retry",
    "ShuttingDown",
    "StageNotFound",
    "StorageFailed",
    "StorageFull",
    "SubscriptionBusy",
    "SubscriptionExists",
    "SubscriptionMoved",
    "SubscriptionNotFound",
    "SubscriptionSummary",
    "SubscriptionTypeMismatch",
    "Throttled",
    "TierMisconfigured",
    "TooManyConnections",
    "TopicDeleted",
    "TopicDescribed",
    "TopicExists",
    "TopicMoved",
    "TopicNotFound",
    "TopicSummary",
    "Transaction",
    "TransactionAborted",
    "TransactionConflict",
    "TransactionNotFound",
    "TransactionTooLarge",
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
    "Consumer": "danubius.client.consuming.consumer",
    "Message": "danubius.client.messages",
    "Producer": "danubius.client.producing.producer",
    "Reader": "danubius.client.consuming.reader",
    "Receipt": "danubius.client.messages",
    "Receipts": "danubius.client.messages",
    "ReceiveTimeout": "danubius.client.consuming.timeouts",
    "ReceivedBatch": "danubius.client.messages",
    "SubscriptionSummary": "danubius.wire.commands",
    "TopicDescribed": "danubius.wire.commands",
    "TopicSummary": "danubius.wire.commands",
    "Transaction": "danubius.client.transactions.transaction",
    "connect": "danubius.client.connecting",
}
"""Where the names live that are loaded on first use."""


if not TYPE_CHECKING:  # a type checker takes the imports above, and finds misspelt names

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used, and keep it."""
        if name == "blocking":
            return import_module("danubius.blocking")
        if name == "tracing":
            return _tracing()
        if name == "__version__":
            return import_module("danubius.client.version").VERSION
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'danubius' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def _tracing() -> object:
    """Not among the names of `import *`: it needs a package that many do without."""
    try:
        return import_module("danubius.client.tracing")
    except ImportError as error:
        raise ImportError(
            f"danubius.tracing needs OpenTelemetry ({error}): pip install 'danubius[tracing]'"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
