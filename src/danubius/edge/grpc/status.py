"""Statuses of gRPC for errors of ours.

Danube's clients act on the code: they try again what is UNAVAILABLE or RESOURCE_EXHAUSTED, and hand everything else to
the application. So what passes by itself is UNAVAILABLE, and what never will is INVALID_ARGUMENT; the rest says what
it is. The text is the error's own sentence. The codes are gRPC's numbers, so that nothing here has to import it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from danubius import errors

if TYPE_CHECKING:
    from danubius.errors import DanubiusError


class Code(enum.IntEnum):
    """The statuses that are given here, with gRPC's numbers."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


_CODES: Final[dict[type[DanubiusError], Code]] = {
    errors.TopicNotFound: Code.NOT_FOUND,
    errors.SubscriptionNotFound: Code.NOT_FOUND,
    errors.NamespaceNotFound: Code.NOT_FOUND,
    errors.TransactionNotFound: Code.NOT_FOUND,
    errors.OffsetOutOfRange: Code.OUT_OF_RANGE,
    errors.TopicExists: Code.ALREADY_EXISTS,
    errors.NamespaceExists: Code.ALREADY_EXISTS,
    errors.SubscriptionExists: Code.ALREADY_EXISTS,
    errors.NamespaceNotEmpty: Code.FAILED_PRECONDITION,
    errors.SubscriptionTypeMismatch: Code.FAILED_PRECONDITION,
    errors.SubscriptionBusy: Code.PERMISSION_DENIED,
    errors.ProducerBusy: Code.PERMISSION_DENIED,
    errors.LimitReached: Code.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: Code.RESOURCE_EXHAUSTED,
    errors.Throttled: Code.RESOURCE_EXHAUSTED,
    errors.LedgerDamaged: Code.DATA_LOSS,
    errors.ProducerFenced: Code.UNAVAILABLE,
    errors.TopicDeleted: Code.UNAVAILABLE,
    errors.ConsumerReplaced: Code.UNAVAILABLE,
    errors.ClientClosed: Code.UNAVAILABLE,
}


class Refused(Exception):
    """A request is answered with this status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def status_of(error: DanubiusError) -> Code:
    """The status of an error: named above, or by whether trying again helps."""
    named = _CODES.get(type(error))
    if named is not None:
        return named
    return Code.UNAVAILABLE if error.is_retryable else Code.INVALID_ARGUMENT
