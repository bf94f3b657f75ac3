"""Stateless reads: whole batches from a position, with a bounded wait at the end of the log."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from danubius.errors import DanubiusError, InvalidArgument, LedgerDamaged
from danubius.model.limits import FETCH_BYTES_MAX
from danubius.wire.commands import Fetch, Fetched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.ledger.entry import Chunk
    from danubius.model.buffers import Buffer
    from danubius.session.fetch_gate import FetchGate
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

WAIT_MS_MAX = 60_000
"""A fetch is answered within this time, however long it asked to wait."""


class OnFetched(Protocol):
    """Where the answer goes."""

    def __call__(self, result: Fetched | DanubiusError, payload: Sequence[Buffer] = ()) -> None: ...


class FetchRequest:
    """One fetch from its arrival to its answer."""

    __slots__ = ("_command", "_gate", "_has_waited", "_on_done", "_shard", "_topic")

    def __init__(
        self, shard: Shard, topic: Topic, command: Fetch, gate: FetchGate, on_done: OnFetched
    ) -> None:
        self._shard = shard
        self._topic = topic
        self._command = command
        self._gate = gate
        self._on_done = on_done
        self._has_waited = False

    def start(self) -> None:
        if self._command.bytes_max < 1 or self._command.wait_ms < 0:
            raise InvalidArgument("a fetch needs bytes_max of at least 1 and wait_ms of at least 0")
        self._topic.resolve(self._command.start, self._resolved)

    def _resolved(self, offset: int | DanubiusError) -> None:
        if isinstance(offset, DanubiusError):
            self._on_done(offset)
            return
        wait_ms = min(self._command.wait_ms, WAIT_MS_MAX)
        if offset >= self._topic.log.end_offset and wait_ms and not self._has_waited:
            self._wait(offset, wait_ms)
        else:
            self._enter(offset)

    def _enter(self, offset: int) -> None:
        """Wait for a turn to read; the turn ends with the answer."""
        try:
            self._gate.enter(functools.partial(self._read, offset, offset))
        except DanubiusError as error:
            self._on_done(error)

    def _finish(self, result: Fetched | DanubiusError, payload: Sequence[Buffer] = ()) -> None:
        self._on_done(result, payload)
        self._gate.leave()

    def _wait(self, offset: int, wait_ms: int) -> None:
        self._has_waited = True
        is_answered = False

        def wake() -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                timer.cancel()
                self._enter(offset)

        def expire() -> None:
            # The topic forgets the waiter, or idle readers would pile up on a quiet topic.
            if wake in self._topic.waiters:
                self._topic.waiters.remove(wake)
            wake()

        timer = self._shard.loop.call_later(wait_ms / 1000, expire)
        self._topic.waiters.append(wake)

    def _read(self, asked: int, first: int) -> None:
        """Read from `first`, which is above what was asked if a damaged range is being passed over."""

        def read(chunk: Chunk | DanubiusError) -> None:
            if isinstance(chunk, LedgerDamaged) and self._command.skip_damaged:
                self._read(asked, _end_of_damage(chunk, first))
            elif isinstance(chunk, DanubiusError):
                self._finish(chunk)
            else:
                self._answer(first, chunk)

        try:
            self._topic.check_open()
            bytes_max = min(self._command.bytes_max, FETCH_BYTES_MAX)
            # Whoever passes over damage needs somebody who finds it.
            may_point = self._command.may_point and not self._command.skip_damaged
            self._topic.log.read(first, bytes_max, read, may_point=may_point)
        except DanubiusError as error:
            self._finish(error)

    def _answer(self, first: int, chunk: Chunk) -> None:
        topic, log = self._topic, self._topic.log
        following = chunk.end if chunk.buffers or chunk.part else first
        self._shard.count_delivered(max(0, following - first), chunk.size)
        self._finish(
            Fetched(
                max(first, chunk.first),
                following,
                log.start_offset,
                log.end_offset,
                topic.incarnation,
                chunk.part,
            ),
            chunk.buffers,
        )


def _end_of_damage(error: LedgerDamaged, first: int) -> int:
    return max(error.end, first + 1)
