"""Ports of journal and snapshots, wherever they are kept: in files, or in objects.

For types only: the parts that append hold the journal itself, and nothing stands between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.model.buffers import Buffer
    from danubius.wal.committer import JournalCounters
    from danubius.wal.journal import JournalRecord, OnCommitted, OnFailed, OnSynced, Post
    from danubius.wal.snapshot import Snapshot


class JournalPort(Protocol):
    """Life: inspect() to its end, secure(), start(), append()…, close(). `wal.journal` says what is promised."""

    counters: JournalCounters

    @property
    def queued_bytes(self) -> int:
        """Appended and not yet reported."""
        ...

    @property
    def is_congested(self) -> bool: ...

    @property
    def end_position(self) -> int:
        """Everything below is committed, and was reported."""
        ...

    @property
    def size_bytes(self) -> int:
        """What trim could free at the most: start a checkpoint on it."""
        ...

    @property
    def bytes_max(self) -> int: ...

    @property
    def is_nearly_full(self) -> bool: ...

    def inspect(
        self, from_position: int, *, keep_from: int | None = None, reach: int | None = None
    ) -> Iterator[JournalRecord]:
        """Every record from a position on, in order, without a change to anything; may be gone through again."""
        ...

    def secure(self) -> None:
        """What `inspect` found is sound, and is built on from here on."""
        ...

    def start(
        self,
        post: Post,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        *,
        defer: Post | None = None,
    ) -> None: ...

    def append(
        self,
        kind: int,
        topic_id: int,
        body: Buffer | Sequence[Buffer],
        token: object = None,
        *,
        sync: bool,
    ) -> None:
        """Queue a record; never waits. Its buffers must not change until it is reported."""
        ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def sync(self, on_done: OnSynced) -> None:
        """Make everything that was committed so far durable; then `on_done` runs on the loop."""
        ...

    def trim(self, position: int) -> None:
        """Nothing below `position` is needed any more (a durable snapshot covers it)."""
        ...

    def close(self) -> None:
        """Commit and report what was appended, before this returns."""
        ...


class SnapshotPort(Protocol):
    """Snapshots, the last two. `wal.snapshot` says what is promised."""

    def save(self, position: int, data: bytes, *, is_sole: bool = False) -> int:
        """Make a snapshot durable; the answer is the position to which the journal may be trimmed."""
        ...

    def load_latest(self) -> Snapshot | None:
        """The newest whole one; changes nothing."""
        ...

    def set_aside(self) -> None:
        """Those that `load_latest` found damaged do not count any more: the broker goes on from an older one."""
        ...

    def oldest_position(self) -> int: ...
