"""The one error tree: every failure a user can see is a leaf with a code, a sentence and advice.

Codes are stable integers that travel on the wire and are never reused. The hundreds digit is the family:
1xx wrong use, 2xx not found, 3xx conflict, 4xx overloaded, 5xx unavailable, 6xx damaged data, 7xx the data directory.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from danubius.redaction import redact


class Retry(enum.IntEnum):
    """What a caller should do about an error."""

    NEVER = 0
    """The same call fails the same way: change the call."""
    SAME = 1
    """The same call may succeed at once, for example on a new connection."""
    AFTER_WAIT = 2
    """The same call may succeed after a back-off."""
    AFTER_LOOKUP = 3
    """Ask again who owns the topic, then retry there."""


class DanubiusError(Exception):
    """Root of all errors. Catch it to catch everything Danubius raises."""

    code: ClassVar[int] = 0
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, message: str) -> None:
        message = redact(message)  # most errors quote what they were given, addresses among it
        super().__init__(message)
        self.message = message

    @property
    def is_retryable(self) -> bool:
        return self.retry is not Retry.NEVER


# ---------------------------------------------------------------- 1xx wrong use


class InvalidName(DanubiusError):
    """A topic, subscription, producer or consumer name breaks the naming rules."""

    code = 101


class InvalidArgument(DanubiusError):
    """An option or argument is out of its range or does not fit the others."""

    code = 102


class MessageTooLarge(DanubiusError):
    """A message or batch is larger than the broker accepts."""

    code = 103


class UnsupportedVersion(DanubiusError):
    """The peer speaks no common version of the protocol or the record batch."""

    code = 104


class ProtocolViolation(DanubiusError):
    """The peer sent a frame that the protocol does not allow here. The connection is closed."""

    code = 105


class InvalidBatch(DanubiusError):
    """A record batch is malformed or fails its checksum. It was not stored."""

    code = 106


class ClientClosed(DanubiusError):
    """The client, producer, consumer or reader was closed."""

    code = 107


class TransactionTooLarge(DanubiusError):
    """The messages of one transaction are together more than the broker keeps for one."""

    code = 109


class TierMisconfigured(DanubiusError):
    """The object store cannot be used as it is set up: wrong address, option or credentials, or no such bucket."""

    code = 110


# ---------------------------------------------------------------- 2xx not found


class TopicNotFound(DanubiusError):
    """The topic does not exist."""

    code = 201


class SubscriptionNotFound(DanubiusError):
    """The subscription does not exist."""

    code = 202


class OffsetOutOfRange(DanubiusError):
    """The offset lies outside what the topic still holds."""

    code = 203


class HandleNotFound(DanubiusError):
    """The producer or consumer handle is not open on this connection."""

    code = 204
    retry = Retry.SAME


class NamespaceNotFound(DanubiusError):
    """The namespace does not exist."""

    code = 205


class TransactionNotFound(DanubiusError):
    """No such transaction is open on this broker, and it was not committed."""

    code = 206


class StageNotFound(DanubiusError):
    """The stage was dropped, has expired, or lost a part of what was staged: the task has to be run again."""

    code = 207


class ObjectNotFound(DanubiusError):
    """The object store has no object of this name."""

    code = 208


# ---------------------------------------------------------------- 3xx conflict


class TopicExists(DanubiusError):
    """The topic exists already, with other settings."""

    code = 301


class SubscriptionBusy(DanubiusError):
    """An exclusive subscription has a consumer, and it is alive."""

    code = 302


class SubscriptionTypeMismatch(DanubiusError):
    """The subscription has connected consumers of another type."""

    code = 303


class ProducerFenced(DanubiusError):
    """A newer producer of the same name took over."""

    code = 304


class OutOfSequence(DanubiusError):
    """A batch arrived ahead of one that was not stored; the earlier ones come first."""

    code = 305
    retry = Retry.SAME


class TopicDeleted(DanubiusError):
    """The topic was deleted while this producer, consumer or reader was open."""

    code = 306


class ConsumerReplaced(DanubiusError):
    """A consumer of the same name took this one's place."""

    code = 307


class NamespaceExists(DanubiusError):
    """The namespace exists already, with other policies."""

    code = 308


class NamespaceNotEmpty(DanubiusError):
    """The namespace still has topics."""

    code = 309


class ProducerBusy(DanubiusError):
    """Another producer holds the topic exclusively, or is there where an exclusive one wants to be."""

    code = 310


class SubscriptionMoved(DanubiusError):
    """The subscription was moved to another position; the consumer attaches again and goes on from there."""

    code = 311
    retry = Retry.SAME


class TransactionConflict(DanubiusError):
    """A message acknowledged inside the transaction was acknowledged elsewhere. The transaction is aborted."""

    code = 312


class TransactionAborted(DanubiusError):
    """The transaction is over: it was aborted, ran out of time, or its connection was lost."""

    code = 313


class SubscriptionExists(DanubiusError):
    """The subscription exists already."""

    code = 314


# ---------------------------------------------------------------- 4xx overloaded


class Overloaded(DanubiusError):
    """A queue is at its bound; slow down, or wait for what is under way."""

    code = 401
    retry = Retry.AFTER_WAIT


class TooManyConnections(DanubiusError):
    """The broker is at its limit of connections."""

    code = 402
    retry = Retry.AFTER_WAIT


class LimitReached(DanubiusError):
    """A limit set for the topic, its namespace or the broker is reached."""

    code = 403
    retry = Retry.AFTER_WAIT


class Throttled(DanubiusError):
    """More is published than the rate allows. Nothing was stored; try again after `wait_ms`."""

    code = 404
    retry = Retry.AFTER_WAIT

    def __init__(self, message: str, wait_ms: int = 0) -> None:
        super().__init__(message)
        self.wait_ms = wait_ms


class QuotaExceeded(DanubiusError):
    """The topic or its namespace holds as many bytes as it may."""

    code = 405
    retry = Retry.AFTER_WAIT


# ---------------------------------------------------------------- 5xx unavailable


class BrokerUnavailable(DanubiusError):
    """No broker answers at the address, or the connection to it was lost."""

    code = 501
    retry = Retry.AFTER_WAIT


class StorageFull(DanubiusError):
    """The broker's disk is full. Nothing was stored; reading goes on."""

    code = 502
    retry = Retry.AFTER_WAIT


class StorageFailed(DanubiusError):
    """The broker's disk failed a write or a read. Nothing was acknowledged."""

    code = 503
    retry = Retry.AFTER_WAIT


class DeadlineExceeded(DanubiusError):
    """No answer came in time; whether the call took effect is unknown."""

    code = 504
    retry = Retry.SAME


class ShuttingDown(DanubiusError):
    """The broker is stopping and takes no new work."""

    code = 505
    retry = Retry.AFTER_WAIT


class TopicMoved(DanubiusError):
    """This broker does not serve the topic, or not any more. Nothing was done: look up who does, and ask there."""

    code = 506
    retry = Retry.AFTER_LOOKUP


# ---------------------------------------------------------------- 6xx damaged data


class LedgerDamaged(DanubiusError):
    """A range of a stored topic fails its checksum; it is skipped only by explicit choice."""

    code = 601

    def __init__(self, message: str, first: int = 0, end: int = 0) -> None:
        super().__init__(message)
        self.first = first
        """First offset of the damaged range."""
        self.end = end
        """First offset behind it: where to go on to skip it. 0 if the range is not known."""


# ---------------------------------------------------------------- 7xx the data directory


class DataDirectoryInUse(DanubiusError):
    """Another broker holds the data directory."""

    code = 701


class DataDirectoryTooNew(DanubiusError):
    """The data directory was written by a newer version."""

    code = 702


class DataDirectoryDamaged(DanubiusError):
    """The data directory lacks what the broker needs to recover without loss."""

    code = 703


class BrokerReplaced(DanubiusError):
    """Another start of this broker has taken its store over; this one ends, and takes nothing more."""

    code = 704
    retry = Retry.AFTER_WAIT


class UnknownError(DanubiusError):
    """The broker reported a code this version does not know."""

    code = 999


class InvariantViolation(AssertionError):
    """A bug in Danubius itself: state that must not be was seen. Never caught below the composition root."""


def _leaves(cls: type[DanubiusError]) -> list[type[DanubiusError]]:
    return [cls] + [leaf for sub in cls.__subclasses__() for leaf in _leaves(sub)]


_BY_CODE: dict[int, type[DanubiusError]] = {leaf.code: leaf for leaf in _leaves(DanubiusError)}


def error_from_code(
    code: int, message: str, first: int = 0, end: int = 0, wait_ms: int = 0
) -> DanubiusError:
    """Build the leaf for a code that came over the wire, with the offsets [first, end) or the wait if it has some."""
    leaf = _BY_CODE.get(code)
    if leaf is None:
        return UnknownError(f"{message} (error code {code})")
    if issubclass(leaf, LedgerDamaged):
        return leaf(message, first, end)
    if issubclass(leaf, Throttled):
        return leaf(message, wait_ms)
    return leaf(message)


def all_error_types() -> list[type[DanubiusError]]:
    """Every leaf, in order of its code."""
    return [_BY_CODE[code] for code in sorted(_BY_CODE) if code]
