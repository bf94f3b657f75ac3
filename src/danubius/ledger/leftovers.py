"""Ledgers that a start finds and its snapshot does not know, and what becomes of them.

Invariants:
- Looking at them changes nothing. What is done about them is done when the start has come through.
- *Explained*: all that it holds is in the state, or was deleted by it. That is so for ledgers of topics and messages
  that the state has let go of, and for those that were written behind the snapshot, if they hold no more bytes than
  the journal gives back: a ledger holds batches as the journal has them, in its order. Such are deleted.
- Everything else is *unexplained*: set aside where the store can do that, left where it is otherwise, and named.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from danubius.errors import DanubiusError, InvalidBatch, LedgerDamaged, UnsupportedVersion
from danubius.ledger.entry import LedgerRef
from danubius.record.header import HEADER_BYTES, read_header
from danubius.record.ledger_file import FILE_HEADER_BYTES, decode_header
from danubius.record.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from danubius.ledger.entry import LedgerMeta
    from danubius.ledger.store import LedgerStore
    from danubius.record.ledger_file import LedgerHeader

log = logging.getLogger(__name__)


class Added(NamedTuple):
    """What the journal has of a topic behind the snapshot."""

    first_offset: int
    replayed_bytes: int
    is_removed: bool = False


class State(NamedTuple):
    """All that can explain a ledger."""

    ledgers: Mapping[int, list[LedgerMeta]]
    """By topic: those of the snapshot."""
    added: Mapping[int, Added]
    """By topic: those of the snapshot and of the journal."""
    topics_end: int = 0
    """Topics with lower numbers were known once: if they are not, they were deleted."""
    is_certain: bool = True
    """Whether the snapshot says whose it is. If not, what it does not know is not taken for deleted."""


class Leftover(NamedTuple):
    """A ledger that the snapshot does not know, or what lies behind the end that it knows of one."""

    ref: LedgerRef
    epoch: int
    size: int
    """Bytes beside its header, or behind the end that is known."""
    problem: str = ""
    """Why nothing explains it; empty: it is explained."""
    is_behind: bool = False
    """Whether it holds messages that were published behind the snapshot."""
    meta: LedgerMeta | None = None
    """Of one that is known."""


def find_leftovers(store: LedgerStore, state: State) -> list[Leftover]:
    """Look at what is there. Blocks; raises as the store does."""
    known = known_ledgers(state.ledgers)
    found: list[Leftover] = []
    replayed: dict[tuple[int, int], int] = defaultdict(int)
    for ref in store.list():
        meta = known.get(ref)
        if meta is None:
            one = _judge(ref, _header(store, ref), store.size_of(ref), state)
        elif meta.is_sealed or not store.read(ref, meta.data_bytes, 1):
            continue
        else:
            size = store.size_of(ref) - meta.data_bytes
            one = Leftover(ref, meta.epoch, size, is_behind=True, meta=meta)
        found.append(one)
        if one.is_behind:
            replayed[ref.topic_id, one.epoch] += one.size
    return [_weigh(one, replayed, state) for one in found]


class Newer(NamedTuple):
    """A leftover with a message that the state has not come to yet."""

    ref: LedgerRef
    offset: int


def find_newer(
    store: LedgerStore, leftovers: Iterable[Leftover], ends: Mapping[int, int]
) -> Newer | None:
    """Whether one that nothing explains has sound messages behind the ends of the topics: then the state is older.

    Read is what lies behind the snapshot, of those that nothing explains. Blocks; raises as the store does.
    """
    for one in leftovers:
        if one.problem and one.is_behind:
            end = max(_ends_of_batches(store, one), default=0)
            if end > ends.get(one.ref.topic_id, end):
                return Newer(one.ref, end - 1)
    return None


def _ends_of_batches(store: LedgerStore, one: Leftover) -> Iterator[int]:
    """The offset behind each batch, as far as they are sound."""
    at = FILE_HEADER_BYTES if one.meta is None else one.meta.data_bytes
    end = at + one.size
    while at < end:
        try:
            header = read_header(store.read(one.ref, at, HEADER_BYTES))
        except (InvalidBatch, UnsupportedVersion):
            return
        if header.length > end - at or scan(store.read(one.ref, at, header.length)).problem:
            return
        yield header.base_offset + header.count
        at += header.length


def known_ledgers(ledgers: Mapping[int, list[LedgerMeta]]) -> dict[LedgerRef, LedgerMeta]:
    """Those that must be in the store."""
    return {
        LedgerRef(topic_id, meta.ledger_id): meta
        for topic_id, metas in ledgers.items()
        for meta in metas
        if meta.is_local
    }


def repeated(leftovers: Iterable[Leftover]) -> list[LedgerRef]:
    """Those that were made by starts which died before they came through: copies of what an earlier life left."""
    first: dict[int, int] = {}
    explained = [one for one in leftovers if one.is_behind and not one.problem]
    for one in explained:
        first[one.ref.topic_id] = min(first.get(one.ref.topic_id, one.epoch), one.epoch)
    return [
        one.ref for one in explained if one.meta is None and one.epoch > first[one.ref.topic_id]
    ]


def clear(store: LedgerStore, leftovers: Iterable[Leftover]) -> list[str]:
    """The start has come through: delete what is explained, set the rest aside, and say where each of that is.

    What fails is left where it is, and found by the next start.
    """
    places: list[str] = []
    for one in leftovers:
        name = f"ledger {one.ref.ledger_id} of topic id {one.ref.topic_id}"
        try:
            if one.problem:
                place = store.set_aside(one.ref) if one.meta is None else ""
                places.append(place or f"{name}, where it was")
                log.error(
                    "nothing explains a ledger, which is kept",
                    extra={
                        "ledger": name,
                        "place": place or "where it was",
                        "problem": one.problem,
                    },
                )
            elif one.meta is None:
                store.delete(one.ref)
            else:
                store.truncate(one.ref, one.meta.data_bytes, one.meta.index_entries)
        except DanubiusError as error:
            log.warning("a leftover stays", extra={"ledger": name, "error": error.message})
    return places


def _header(store: LedgerStore, ref: LedgerRef) -> LedgerHeader | None:
    try:
        return decode_header(store.read(ref, 0, FILE_HEADER_BYTES))
    except LedgerDamaged:
        return None


def _judge(ref: LedgerRef, header: LedgerHeader | None, size: int, state: State) -> Leftover:
    """A ledger that is not known, as far as its name and header tell."""
    one = Leftover(ref, 0 if header is None else header.epoch, max(0, size - FILE_HEADER_BYTES))
    topic = state.added.get(ref.topic_id)
    is_cold = any(meta.ledger_id == ref.ledger_id for meta in state.ledgers.get(ref.topic_id, ()))
    if not one.size or is_cold or (topic is not None and topic.is_removed):
        return one  # it never held a message; or its object was proven, or its topic deleted, before its files went
    if topic is None:
        is_deleted = ref.topic_id < state.topics_end and state.is_certain
        return one if is_deleted else one._replace(problem="it is of a topic that nobody knows")
    if header is None:
        return one._replace(problem="its header is damaged")
    if header.base_offset >= topic.first_offset:
        return one._replace(is_behind=True)
    if state.is_certain:
        return one  # other ledgers have these messages, or they were deleted
    return one._replace(
        problem=f"its messages, from {header.base_offset} on, are known to be elsewhere"
    )


def _weigh(one: Leftover, replayed: Mapping[tuple[int, int], int], state: State) -> Leftover:
    if not one.is_behind:
        return one
    size = replayed[one.ref.topic_id, one.epoch]
    topic = state.added.get(one.ref.topic_id)
    journaled = 0 if topic is None else topic.replayed_bytes
    if size <= journaled:
        return one
    problem = (
        f"{size} bytes were written behind the snapshot, and the journal has {journaled} of them"
    )
    return one._replace(problem=problem)
