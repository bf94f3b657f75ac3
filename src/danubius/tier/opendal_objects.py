"""Objects in whatever OpenDAL speaks to: S3, GCS, Azure Blob, Redis and more. The only module that knows it.

What it keeps away from everybody else:
- Its exceptions share no base class, writers raise OSError instead, and their text holds whole requests, tokens
  included: here they become ours, with the reason alone, and are not chained.
- A writer that is left by an exception as a context manager COMMITS what it has. Ours is closed on success only; else
  it is dropped, and nothing is visible. There is no way to abort what a server holds of it: see `_put_parts`.
- A range that ends behind the object is an error to it, in several ways. Here it is a short read.
- It counts on threads that a fork does not take along: use spawn. A process that ends right after the last call may
  be ended by SIGABRT: `close`, and the end of the interpreter, wait for a moment.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import opendal
from opendal import exceptions as raised
from opendal.layers import RetryLayer, TimeoutLayer

from danubius.errors import ObjectNotFound, StorageFailed, TierMisconfigured
from danubius.redaction import HIDDEN, is_secret_name
from danubius.tier.objects import ObjectInfo, ObjectLimits, check_name, check_prefix

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from danubius.model.buffers import Buffer

_ERRORS: Final = (
    OSError,
    *(
        kind
        for kind in vars(raised).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
_ATTEMPT_SHARE: Final = 0.28
_WAIT_MIN_SHARE: Final = 0.005
_WAIT_MAX_SHARE: Final = 0.033
"""Of the deadline: three attempts, and two waits that dice may double, stay within it."""
_SETTLE_S: Final = 0.05
_FIRST_WORDS: Final = re.compile(r"^(\w+) \((?:permanent|persistent|temporary)\)")
_FROM_SERVER: Final = re.compile(r'code: "?([^",]*)"?, message: "([^"]*?)(?: RequestId:[^"]*)?"')
_STATUS: Final = re.compile(r"status: (\d{3})")
_REASON_LENGTH_MAX: Final = 300
_READ_TRIES: Final = 4
_SECRET_LENGTH_MIN: Final = 6
"""Shorter ones are no secrets, and would be found in every other word."""
_open_stores: Final[set[int]] = set()


class _Failure(NamedTuple):
    error: type[Exception]
    reason: str


def known_schemes() -> dict[str, frozenset[str]]:
    """The schemes OpenDAL has, and the options of each."""
    schemes: dict[str, frozenset[str]] = {}
    for name, config in vars(opendal.config).items():
        if not name.endswith("Config") or not isinstance(config, type):
            continue
        options = frozenset(config.__annotations__) - {"scheme"}
        word = re.search(
            r"""["']([a-z0-9-]+)["']\]""", str(config.__annotations__.get("scheme", ""))
        )
        if word is not None:
            schemes[word[1]] = options
    return schemes


class OpendalObjects:
    """An operator with deadlines and retries. It may be used by any number of threads."""

    def __init__(
        self, scheme: str, options: Mapping[str, str], url: str, limits: ObjectLimits | None = None
    ) -> None:
        self._limits = limits or ObjectLimits()
        self._url = url
        self._secrets = [
            value
            for name, value in options.items()
            if is_secret_name(name) and len(value) >= _SECRET_LENGTH_MIN
        ]
        deadline_s = self._limits.deadline_s
        attempt_s = deadline_s * _ATTEMPT_SHARE * 3 / self._limits.attempts
        with self._translated("open", ""):
            operator = opendal.Operator(scheme, **options)
            self._operator = operator.layer(
                TimeoutLayer(timeout=attempt_s, io_timeout=attempt_s)
            ).layer(
                RetryLayer(
                    max_times=self._limits.attempts - 1,
                    factor=3.0,
                    jitter=True,
                    min_delay=deadline_s * _WAIT_MIN_SHARE,
                    max_delay=deadline_s * _WAIT_MAX_SHARE,
                )
            )
        able = self._operator.capability()
        self.can_list = able.list
        self._can_refuse = able.write_with_if_not_exists
        self._does_refuse = False
        """It was seen to: OpenDAL says what a protocol can, and servers of it may pass over the condition."""
        self._can_take_parts = able.write_can_multi
        self._part_bytes = max(self._limits.part_bytes, able.write_multi_min_size or 0)
        _open_stores.add(id(self))

    @property
    def url(self) -> str:
        return self._url

    # ------------------------------------------------------------ writing

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        check_name(name)
        rest = iter(parts)
        first = self._take(rest, self._part_bytes)
        more = self._take(rest, 1)
        # Also where the store refuses by itself: it would be told a whole object first, and some only say that they do.
        if not replace and (more or not self._does_refuse) and self.stat(name) is not None:
            return False
        refuse = not replace and self._can_refuse
        everything = itertools.chain(first, more, rest)
        try:
            if more and self._can_take_parts:
                self._put_parts(name, everything, refuse=refuse)
            else:
                self._put_whole(name, everything, refuse=refuse)
        except _Exists:
            return False
        except _Absent as error:
            # Whoever writes can only be told of a place that is not there.
            raise TierMisconfigured(str(error)) from None
        return True

    def refuses(self, name: str) -> bool:
        check_name(name)
        if self._can_refuse and not self._does_refuse:
            self._put_whole(name, [b"first"], refuse=False)
            try:
                self._put_whole(name, [b"second"], refuse=True)
            except _Exists:
                self._does_refuse = True
            self.delete(name)
        return self._does_refuse

    def _put_whole(self, name: str, parts: Iterable[Buffer], *, refuse: bool) -> None:
        data = self._join(name, parts)
        with self._translated("store", name):
            if refuse:
                self._operator.write(name, data, if_not_exists=True)
            else:
                self._operator.write(name, data)

    def _put_parts(self, name: str, parts: Iterable[Buffer], *, refuse: bool) -> None:
        """Send parts while others are made, and make them an object at the end.

        After a failure the server keeps parts that no object is made of, and OpenDAL has no call to drop them: Azure
        drops them after a week, a bucket of S3 or GCS by its rule "abort incomplete multipart uploads".
        """
        chunk, at_once = self._part_bytes, self._limits.parts_at_once
        with self._translated("store", name):
            if refuse:
                file = self._operator.open(
                    name, "wb", chunk=chunk, concurrent=at_once, if_not_exists=True
                )
            else:
                file = self._operator.open(name, "wb", chunk=chunk, concurrent=at_once)
        for part in parts:
            with self._translated("store", name):
                file.write(bytes(part))
        with self._translated("store", name):
            file.close()

    def _take(self, rest: Iterator[Buffer], count: int) -> list[Buffer]:
        """Parts of at least so many bytes together, or all that are left."""
        taken: list[Buffer] = []
        while count > 0 and (part := next(rest, None)) is not None:
            taken.append(part)
            count -= len(part)
        return taken

    def _join(self, name: str, parts: Iterable[Buffer]) -> bytes:
        joined = bytearray()
        for part in parts:
            joined += part
            if len(joined) > self._limits.whole_bytes_max:
                raise StorageFailed(
                    f"cannot store {name} in {self._url}: it takes an object in one piece only, "
                    f"and this one has more than {self._limits.whole_bytes_max} bytes"
                )
        return bytes(joined)

    def delete(self, name: str) -> None:
        check_name(name)
        with contextlib.suppress(_Absent), self._translated("delete", name):
            self._operator.delete(name)

    # ------------------------------------------------------------ reading

    def get(self, name: str, at: int, count: int) -> bytes:
        check_name(name)
        if count <= 0:
            return b""
        wanted, reason = count, ""
        for _ in range(_READ_TRIES):
            try:
                return self._read(name, at, wanted)
            except (_OutOfRange, _Absent) as error:
                reason = str(error)
            # Nothing else says how long it is. If it is long enough, the answer was cut short, or another object took
            # its place meanwhile; the next answer may be better.
            info = self.stat(name)
            if info is None:
                raise ObjectNotFound(f"{self._url} has no object {name}")
            wanted = min(count, info.size - at)
            if wanted <= 0:
                return b""
        raise StorageFailed(reason)

    def _read(self, name: str, at: int, count: int) -> bytes:
        with self._translated("read", name):
            data = self._operator.read(name, offset=at, size=count)
        if len(data) != count:
            raise _OutOfRange(f"cannot read {name} of {self._url}: the answer was cut short")
        return data

    def stat(self, name: str) -> ObjectInfo | None:
        check_name(name)
        try:
            with self._translated("look at", name):
                facts = self._operator.stat(name)
        except _Absent:
            return None
        return None if facts.is_dir else _info(name, facts)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._translated("list", prefix or "/"):
            entries = iter(self._operator.list(prefix, recursive=True))
        try:
            while True:
                try:
                    with self._translated("list", prefix or "/"):
                        entry = next(entries, None)
                except _Absent as error:
                    # A prefix below which there is nothing has an empty list.
                    raise TierMisconfigured(str(error)) from None
                if entry is None:
                    return
                if entry.metadata.is_dir:
                    continue
                info = _info(entry.path, entry.metadata)
                # Not every store says the size here.
                told = info if info.size else self.stat(entry.path)
                if told is not None:
                    yield told
        finally:
            # A lister must end on its own thread, and an error's traceback would keep it for any other.
            del entries

    def close(self) -> None:
        if id(self) in _open_stores:
            _open_stores.discard(id(self))
            time.sleep(_SETTLE_S)

    # ------------------------------------------------------------ failing

    @contextlib.contextmanager
    def _translated(self, verb: str, name: str) -> Generator[None]:
        try:
            yield
        except _ERRORS as error:
            raise self._translate(_explain(error), verb, name) from None

    def _translate(self, failure: _Failure, verb: str, name: str) -> Exception:
        reason = failure.reason
        for secret in self._secrets:
            reason = reason.replace(secret, HIDDEN)
        place = f"{name} in {self._url}" if name else self._url
        return failure.error(f"cannot {verb} {place}: {reason}")


class _Exists(Exception):
    """The store refused to replace an object."""


class _Absent(Exception):
    """The store has no such object, or no such bucket."""


class _OutOfRange(Exception):
    """The store gave fewer bytes than were asked for."""


def _info(name: str, facts: opendal.types.Metadata) -> ObjectInfo:
    modified = facts.last_modified
    return ObjectInfo(
        name, facts.content_length, 0 if modified is None else int(modified.timestamp() * 1000)
    )


_KINDS: Final[dict[str, type[Exception]]] = {
    "NotFound": _Absent,
    "ConditionNotMatch": _Exists,
    "AlreadyExists": _Exists,
    "RangeNotSatisfied": _OutOfRange,
    "PermissionDenied": TierMisconfigured,
    "ConfigInvalid": TierMisconfigured,
    "Unsupported": TierMisconfigured,
}
_STATUSES: Final[dict[str, type[Exception]]] = {
    "401": TierMisconfigured,
    "403": TierMisconfigured,
    "416": _OutOfRange,
}
_WORDS: Final[dict[str, type[Exception]]] = {
    "too little data": _OutOfRange,
    "content range is invalid": _OutOfRange,
    "credential": TierMisconfigured,
}


def _explain(error: BaseException) -> _Failure:
    """What kind of error it is, and the sentence in the middle of what OpenDAL writes about it."""
    text = str(error)
    status = _STATUS.search(text)
    reason = _reason(text, "" if status is None else status[1])
    kind = _FIRST_WORDS.match(text)
    ours = _KINDS.get(kind[1] if kind else type(error).__name__)
    if ours is None and status is not None:
        ours = _STATUSES.get(status[1])
    if ours is None:
        ours = next((ours for word, ours in _WORDS.items() if word in reason), StorageFailed)
    return _Failure(ours, reason)


def _reason(text: str, status: str) -> str:
    told = _FROM_SERVER.search(text)
    if told is not None:
        return f"{told[2] or 'no reason given'} ({told[1]})"[:_REASON_LENGTH_MAX]
    _, arrow, reason = text.partition("=> ")
    if not arrow:
        return f"the server answered {status}" if status else text.partition("\n")[0]
    reason = reason.partition("\n")[0].partition(", source: ")[0]
    source = re.search(r"(?:Source:\s*|, source: )(.*)", text)
    if source is not None:
        reason = f"{reason}: {source[1]}"
    # What follows a question mark in an address may be a signature.
    return re.sub(r"\?\S+", "", reason)[:_REASON_LENGTH_MAX]


def _settle() -> None:
    if _open_stores:
        time.sleep(_SETTLE_S)


atexit.register(_settle)
