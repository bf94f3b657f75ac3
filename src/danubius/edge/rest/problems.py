"""Problems, as HTTP says them: a status, and a problem (RFC 9457) with the error's code, name and sentence."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import msgspec
from starlette.responses import Response

from danubius.errors import (
    DanubiusError,
    DeadlineExceeded,
    InvalidArgument,
    LedgerDamaged,
    MessageTooLarge,
    Throttled,
    TransactionTooLarge,
)

PROBLEM_TYPE: Final = "application/problem+json"
_BY_FAMILY: Final = {1: 400, 2: 404, 3: 409, 4: 429, 5: 503, 6: 422}
_BY_TYPE: Final[dict[type[DanubiusError], int]] = {
    MessageTooLarge: 413,
    TransactionTooLarge: 413,
    DeadlineExceeded: 504,
}


class Problem(msgspec.Struct, frozen=True, gc=False):
    """Why a request failed."""

    type: str
    """`urn:danubius:error:` and the name."""
    title: str
    """What the error means, whatever the request."""
    status: int
    """The status of the answer."""
    detail: str
    """What is wrong, and what would be right."""
    code: int
    """Of the error: stable, the same on every way in."""
    name: str
    """Of the error, as in `danubius.errors`."""
    retry: str
    """`never`, `same`, `after-wait` or `after-lookup`: whether the same request may succeed."""
    wait_ms: int = 0
    """How long to wait before that, if the broker knows."""


class HttpError(InvalidArgument):
    """A request that HTTP has a status of its own for."""

    status: ClassVar[int] = 400

    def __init__(self, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.headers = headers or {}


class CrossOrigin(HttpError):
    """A page of another site wants to change something through its reader's browser."""

    status = 403


class PathNotFound(HttpError):
    """There is nothing under this path."""

    status = 404


class MethodNotAllowed(HttpError):
    """The path does not take this method."""

    status = 405


class BodyTimeout(HttpError):
    """The request's body did not arrive in time."""

    status = 408


class LengthExceeded(HttpError):
    """The request's body is larger than is taken here."""

    status = 413


class MisdirectedRequest(HttpError):
    """The request is for a host that this broker does not answer for."""

    status = 421


class UnsupportedMediaType(HttpError):
    """The request's body is of a media type that is not taken here."""

    status = 415


class SessionNotFound(HttpError):
    """The consumer session does not exist, or has expired."""

    status = 404


def status_of(error: DanubiusError) -> int:
    """The status of the answer that tells of this error."""
    if isinstance(error, HttpError):
        return error.status
    return _BY_TYPE.get(type(error)) or _BY_FAMILY.get(error.code // 100, 500)


def problem_of(error: DanubiusError) -> Problem:
    kind = type(error)
    title = (kind.__doc__ or kind.__name__).splitlines()[0]
    wait_ms = error.wait_ms if isinstance(error, Throttled) else 0
    return Problem(
        f"urn:danubius:error:{kind.__name__}",
        title,
        status_of(error),
        _sentence(error),
        kind.code,
        kind.__name__,
        kind.retry.name.lower().replace("_", "-"),
        wait_ms,
    )


def _sentence(error: DanubiusError) -> str:
    if isinstance(error, LedgerDamaged) and error.end:
        return f"{error.message} (go on at offset {error.end} to skip it)"
    return error.message


def respond(error: DanubiusError) -> Response:
    """The answer that tells of an error."""
    problem = problem_of(error)
    headers: dict[str, Any] = dict(error.headers) if isinstance(error, HttpError) else {}
    if problem.status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(problem.wait_ms / 1000)))
    if isinstance(error, BodyTimeout | LengthExceeded | MisdirectedRequest):
        headers["connection"] = "close"  # what is left of the body is not read
    return Response(
        msgspec.json.encode(problem), problem.status, headers=headers, media_type=PROBLEM_TYPE
    )
