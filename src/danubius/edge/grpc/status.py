"""Which status of gRPC an error of ours is.

Danube's clients act on the code: they try again what is UNAVAILABLE or RESOURCE_EXHAUSTED, and hand everything else to
the application. So what passes by itself is UNAVAILABLE, and what never will is INVALID_ARGUMENT; the rest says what
it is. The text is the error's own sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from danubius import errors

if TYPE_CHECKING:
    from danubius.errors import DanubiusError

_Code = grpc.StatusCode

_CODES: Final[dict[type[DanubiusError], grpc.StatusCode]] = {
    errors.TopicNotFound: _Code.NOT_FOUND,
    errors.SubscriptionNotFound: _Code.NOT_FOUND,
    errors.NamespaceNotFound: _Code.NOT_FOUND,
    errors.TransactionNotFound: _Code.NOT_FOUND,
    errors.OffsetOutOfRange: _Code.OUT_OF_RANGE,
    errors.TopicExists: _Code.ALREADY_EXISTS,
    errors.NamespaceExists: _Code.ALREADY_EXISTS,
    errors.SubscriptionExists: _Code.ALREADY_EXISTS,
    errors.NamespaceNotEmpty: _Code.FAILED_PRECONDITION,
    errors.SubscriptionTypeMismatch: _Code.FAILED_PRECONDITION,
    errors.SubscriptionBusy: _Code.PERMISSION_DENIED,
    errors.ProducerBusy: _Code.PERMISSION_DENIED,
    errors.LimitReached: _Code.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: _Code.RESOURCE_EXHAUSTED,
    errors.Throttled: _Code.RESOURCE_EXHAUSTED,
    errors.LedgerDamaged: _Code.DATA_LOSS,
    errors.ProducerFenced: _Code.UNAVAILABLE,
    errors.TopicDeleted: _Code.UNAVAILABLE,
    errors.ConsumerReplaced: _Code.UNAVAILABLE,
    errors.ClientClosed: _Code.UNAVAILABLE,
}


class Refused(Exception):
    """A request is answered with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def status_of(error: DanubiusError) -> grpc.StatusCode:
    """The status of an error: named above, or by whether trying again helps."""
    named = _CODES.get(type(error))
    if named is not None:
        return named
    return _Code.UNAVAILABLE if error.is_retryable else _Code.INVALID_ARGUMENT
