"""All or nothing: batches for any topics and any facts in one journal record, under one checksum.

Invariants:
- Offsets are given when the record is appended, so they are in the journal's order, and to nothing that was refused.
- Recovery finds the record whole or not at all; one broker has one journal, so there is nothing to coordinate.
- On commit every batch becomes visible and every fact is applied in one call, before any reader hears of it.
- The batches have no producer here, whatever their headers say: they are no part of anybody's sequence.
- A failed record fails everything behind it, also plain publishes to the same topics: a topic forgets all that is
  pending at once, in whatever order the tokens hear of it. So nobody may append anything from inside
  `on_done(error)`: the next token's failure would forget it while the journal stores it. Try again from a timer.

The body: u32 length of the head; the head, a MessagePack array of [topic id, length] of each batch and of the facts;
zeros up to a multiple of 8; the batches back to back, as stamped. See docs/internals/journal.md.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.errors import DanubiusError, InvalidArgument, TransactionTooLarge
from danubius.model.ids import Offset
from danubius.model.limits import MIB
from danubius.shard.state.facts import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.ledger.entry import Entry
    from danubius.record.batch import Header
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard

    OnDone = Callable[[list[Offset] | DanubiusError], None]

ATOMIC_RECORD: Final = 3
"""Journal record kind of an atomic record; its topic id is 0."""
BATCHES_BYTES_MAX: Final = 64 * MIB
"""All batches of one record. A larger one would keep all other publishers waiting for the disk."""
HEAD_BYTES_MAX: Final = 1 * MIB
"""The facts of one record with the list of its batches: room for every topic of a namespace."""

_LENGTH: Final = struct.Struct("<I")
_ALIGNMENT: Final = 8


class Append(NamedTuple):
    """One batch to be published. It was checked, and its memory is writable and the log's from here on."""

    topic: Topic
    batch: memoryview
    header: Header


class _Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    batches: list[tuple[int, int]]
    """Topic id and length of each."""
    facts: list[Event]


class AtomicRecord(NamedTuple):
    """A record as recovery reads it."""

    batches: list[tuple[int, memoryview]]
    """Topic id and bytes of each."""
    facts: list[Event]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Head)


class Atomic:
    """Commits atomic records of one broker, on the loop."""

    __slots__ = ("_is_failing", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._is_failing = False

    def commit(self, appends: Sequence[Append], facts: Sequence[Event], on_done: OnDone) -> None:
        """Make all of it durable and visible, or none. `on_done` is called exactly once unless this raises.

        It hears the offset of every batch, in order, before any reader does; or an error. Raises, and nothing was
        given away, if a topic is being deleted or stores nothing, or if it is too much for one record.
        """
        assert not self._is_failing, "nothing may be appended from inside on_done(error)"
        size = 0
        for append in appends:
            append.topic.check_open()
            if not append.topic.is_reliable:
                raise InvalidArgument(
                    f"topic {append.topic.name} is not reliable: it stores nothing, so nothing can be undone on it"
                )
            size += append.header.length
        if size > BATCHES_BYTES_MAX:
            raise TransactionTooLarge(
                f"{size} bytes of messages are too much to be stored at once; at most {BATCHES_BYTES_MAX} are allowed"
            )
        head = _encode_head([(a.topic.id, a.header.length) for a in appends], facts)
        reserved = [(a.topic, a.topic.pipeline.reserve(a.batch, a.header)) for a in appends]
        body = [head, *(append.batch for append in appends)]
        token = _Commit(self, reserved, facts, on_done)
        self._shard.journal.append(ATOMIC_RECORD, 0, body, token, sync=True)

    def on_committed(self, commit: _Commit) -> None:
        for topic, entry in commit.reserved:
            topic.pipeline.settle(entry)
        for fact in commit.facts:
            self._shard.apply(fact)
        commit.on_done([Offset(entry.first) for _, entry in commit.reserved])

    def on_failed(self, commit: _Commit, error: DanubiusError) -> None:
        for topic, _ in commit.reserved:
            topic.pipeline.cancel()
        journal = self._shard.journal
        queued = journal.queued_bytes
        self._is_failing = True
        try:
            commit.on_done(error)
        finally:
            self._is_failing = False
        assert journal.queued_bytes == queued, "something was appended from inside on_done(error)"


class _Commit:
    """One record on its way through the journal."""

    __slots__ = ("atomic", "facts", "on_done", "reserved")

    def __init__(
        self,
        atomic: Atomic,
        reserved: list[tuple[Topic, Entry]],
        facts: Sequence[Event],
        on_done: OnDone,
    ) -> None:
        self.atomic = atomic
        self.reserved = reserved
        self.facts = facts
        self.on_done = on_done

    def committed(self) -> None:
        self.atomic.on_committed(self)

    def failed(self, error: DanubiusError) -> None:
        self.atomic.on_failed(self, error)


def _encode_head(batches: list[tuple[int, int]], facts: Sequence[Event]) -> bytes:
    head = _encoder.encode(_Head(batches, list(facts)))
    if len(head) > HEAD_BYTES_MAX:
        raise TransactionTooLarge(
            f"{len(batches)} batches and {len(facts)} facts are too much to be stored at once: they take {len(head)} "
            f"bytes beside the messages, at most {HEAD_BYTES_MAX} are allowed"
        )
    padding = -(_LENGTH.size + len(head)) % _ALIGNMENT
    return _LENGTH.pack(len(head)) + head + bytes(padding)


def decode_atomic(body: memoryview) -> AtomicRecord:
    """Read a record back; its batches are parts of `body`. Raises ValueError for what no commit wrote."""
    if len(body) < _LENGTH.size:
        raise ValueError(f"{len(body)} bytes are too few for an atomic record")
    (head_bytes,) = _LENGTH.unpack_from(body)
    head = _decoder.decode(body[_LENGTH.size : _LENGTH.size + head_bytes])
    at = _LENGTH.size + head_bytes
    at += -at % _ALIGNMENT
    batches: list[tuple[int, memoryview]] = []
    for topic_id, length in head.batches:
        batches.append((topic_id, body[at : at + length]))
        at += length
    if at != len(body):
        raise ValueError(f"the batches of an atomic record end at byte {at} of {len(body)}")
    return AtomicRecord(batches, head.facts)
