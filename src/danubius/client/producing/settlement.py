"""Settlements, which wait for a batch: single sends, each with a future of its own, or one part of a `send_many`.

Futures are never shared between callers: cancelling one caller's wait would cancel everybody's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from danubius.client.core.repeat import fresh

if TYPE_CHECKING:
    from danubius.errors import DanubiusError


class Settlement(Protocol):
    """Told exactly once how a batch ended."""

    def stored(self, offset: int) -> None: ...

    def failed(self, error: DanubiusError) -> bool:
        """Return whether everybody concerned heard it."""
        ...


class Waiters:
    """The callers of `send` whose messages are in one batch."""

    __slots__ = ("futures", "has_silent")

    def __init__(self) -> None:
        self.has_silent = False
        """Whether the batch also has messages that nobody waits for."""
        self.futures: list[tuple[int, asyncio.Future[int]]] = []
        """Each with the place of its message in the batch."""

    def stored(self, offset: int) -> None:
        for index, future in self.futures:
            if not future.done():
                future.set_result(offset + index)

    def failed(self, error: DanubiusError) -> bool:
        is_heard = not self.has_silent
        for _, future in self.futures:
            if future.done():
                is_heard = False  # the caller stopped waiting
            else:
                future.set_exception(fresh(error))
        return is_heard


class Sole(msgspec.Struct, eq=False):
    """The caller of `send` whose message is a batch of its own."""

    future: asyncio.Future[int]

    def stored(self, offset: int) -> None:
        if not self.future.done():
            self.future.set_result(offset)

    def failed(self, error: DanubiusError) -> bool:
        if self.future.done():
            return False  # the caller stopped waiting
        self.future.set_exception(fresh(error))
        return True


class _Unheard:
    """For a message of `send_nowait` that is a batch of its own: `flush` tells of its failure."""

    __slots__ = ()

    def stored(self, offset: int) -> None:
        """Nobody waits for it."""

    def failed(self, error: DanubiusError) -> bool:
        del error
        return False


UNHEARD: Final = _Unheard()


class Bundle:
    """All batches of one `send_many`: settled when each of them is."""

    __slots__ = ("_future", "_open", "error", "is_abandoned", "spans")

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        """(first offset, count) of each batch, in order; -1 until it is stored."""
        self.error: DanubiusError | None = None
        self.is_abandoned = False
        """Whether the caller stopped waiting."""
        self._open = 0
        self._future: asyncio.Future[None] | None = None

    def part(self, count: int) -> BundlePart:
        """Announce the next batch."""
        self.spans.append((-1, count))
        self._open += 1
        return BundlePart(self, len(self.spans) - 1)

    @property
    def stored_count(self) -> int:
        """How many messages are known to be stored."""
        return sum(count for offset, count in self.spans if offset >= 0)

    async def wait(self) -> None:
        """Wait until every announced batch is settled."""
        if self._open:
            self._future = asyncio.get_running_loop().create_future()
            await self._future

    def settle(self, index: int, offset: int) -> None:
        self.spans[index] = offset, self.spans[index][1]
        self._open -= 1
        if not self._open and self._future is not None and not self._future.done():
            self._future.set_result(None)


class BundlePart:
    """One batch of a `send_many`."""

    __slots__ = ("_bundle", "_index")

    def __init__(self, bundle: Bundle, index: int) -> None:
        self._bundle = bundle
        self._index = index

    def stored(self, offset: int) -> None:
        self._bundle.settle(self._index, offset)

    def failed(self, error: DanubiusError) -> bool:
        if self._bundle.error is None:
            self._bundle.error = error
        self._bundle.settle(self._index, -1)
        return not self._bundle.is_abandoned
