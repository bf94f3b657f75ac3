"""Promises that every LedgerStore keeps. See `danubius.ledger.store` for the port."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.conformance.checks import Suite, expect, expect_raises, fail
from danubius.errors import StorageFailed
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.store import Append
from danubius.model.limits import KIB, MIB
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    BlockRow,
    LedgerHeader,
    decode_header,
    encode_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.conformance.checks import Finding
    from danubius.ledger.store import LedgerStore

_TOPICS_EACH: Final = 64
_READERS: Final = 4
_EPOCH: Final = 7


class Given(NamedTuple):
    """A store, how to open it again as the next process would, and a topic id that no other check has."""

    store: LedgerStore
    reopen: Callable[[], LedgerStore] | None
    topic_id: int

    @property
    def ref(self) -> LedgerRef:
        return LedgerRef(self.topic_id, 5)

    @property
    def header(self) -> LedgerHeader:
        return header_of(self.ref)

    def own(self, store: LedgerStore | None = None) -> list[LedgerRef]:
        """The ledgers of this check that a store lists."""
        topics = range(self.topic_id, self.topic_id + _TOPICS_EACH)
        return [ref for ref in (store or self.store).list() if ref.topic_id in topics]


suite: Final[Suite[Given]] = Suite()


def header_of(ref: LedgerRef, base_offset: int = 100) -> LedgerHeader:
    return LedgerHeader(*ref, base_offset, _EPOCH, 1_700_000_000_000)


def row(number: int) -> bytes:
    return encode_row(BlockRow(number, 64 + number, 1, 0, 0, 1))


def run_ledger_checks(
    store: LedgerStore, reopen: Callable[[], LedgerStore] | None = None
) -> Iterator[Finding]:
    """Run the suite; topic ids are drawn by lot from 2**40 on, and all that was made is deleted again.

    `reopen` closes nothing: it opens the same place once more, after the first store was closed.
    """
    base = (1 << 40) + secrets.randbelow(1 << 30) * 0x1000
    topics = count(base, _TOPICS_EACH)
    given = [store]

    def again() -> LedgerStore:
        assert reopen is not None
        given[0].close()
        given[0] = reopen()
        return given[0]

    yield from suite.run(lambda: Given(given[0], again if reopen else None, next(topics)))
    for topic_id in {
        ref.topic_id for ref in given[0].list() if base <= ref.topic_id < next(topics)
    }:
        given[0].delete_topic(topic_id)


# ------------------------------------------------------------ writing and reading


@suite.check("a new ledger holds its header alone")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header)
    found = given.store.read(given.ref, 0, 1000)
    expect(len(found), FILE_HEADER_BYTES, "its length")
    expect(decode_header(found), given.header, "its header")


@suite.check("a ledger may be made with its first bytes")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header, [b"abc", memoryview(b"defg")])
    expect(decode_header(given.store.read(given.ref, 0, 64)), given.header, "its header")
    expect(given.store.read(given.ref, 64, 100), b"abcdefg", "what follows it")
    given.store.append(given.ref, 71, [b"hi"])
    expect(given.store.read(given.ref, 64, 100), b"abcdefghi", "that with an append")


@suite.check("what was appended is read at any position, before it is synced")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header)
    given.store.append(given.ref, 64, [b"abc", memoryview(b"defg")])
    given.store.append(given.ref, 71, [bytearray(b"hi")])
    expect(given.store.read(given.ref, 64, 9), b"abcdefghi", "all of it")
    expect(given.store.read(given.ref, 66, 3), b"cde", "the middle")
    expect(given.store.read(given.ref, 70, 2), b"gh", "what lies across two appends")


@suite.check("a read beyond the end is short")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header, [b"abc"])
    expect(given.store.read(given.ref, 66, 100), b"c", "a read across the end")
    expect(given.store.read(given.ref, 500, 100), b"", "a read behind it")


@suite.check("an absent ledger reads as empty")
def _(given: Given) -> None:
    expect(given.store.read(given.ref, 0, 10), b"", "its bytes")
    expect(given.store.read_index(given.ref, 0, 10), b"", "its rows")
    expect(given.own(), [], "the list")


@suite.check("an append is repeated at its position, also in other pieces")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header)
    given.store.append(given.ref, 64, [b"half of"])
    given.store.append(given.ref, 64, [b"the whole thing"])
    expect(given.store.read(given.ref, 64, 100), b"the whole thing", "what is there")
    given.store.append(given.ref, 79, [b" and more"])
    given.store.append(given.ref, 64, [b"the whole"])
    given.store.append(given.ref, 73, [b" thing and", b" more"])
    expect(given.store.read(given.ref, 64, 100), b"the whole thing and more", "what is there then")


@suite.check("appending to an absent ledger is StorageFailed")
def _(given: Given) -> None:
    expect_raises(
        StorageFailed, partial(given.store.append, given.ref, 64, [b"abc"]), "appending to it"
    )


@suite.check("creating a ledger again forgets what was there")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header, [b"old"])
    given.store.append_index(given.ref, given.header, 0, row(0))
    given.store.create(given.ref, header_of(given.ref, 9))
    expect(decode_header(given.store.read(given.ref, 0, 64)).base_offset, 9, "its base offset")
    expect(given.store.read(given.ref, 64, 10), b"", "what follows its header")
    expect(given.store.read_index(given.ref, 0, 1), b"", "its rows")


@suite.check("many ledgers are made and appended to in one call, which may be repeated")
def _(given: Given) -> None:
    refs = [LedgerRef(given.topic_id + number, 0) for number in range(20)]
    first = [Append(ref, header_of(ref), 0, [b"one "], 4) for ref in refs]
    second = [Append(ref, None, 68, [b"two"], 3) for ref in refs]
    given.store.append_many([])
    for _ in range(2):
        given.store.append_many(first)
    for _ in range(2):
        given.store.append_many(second)
    for ref in refs:
        expect(given.store.read(ref, 64, 100), b"one two", f"what {ref} holds")
        expect(decode_header(given.store.read(ref, 0, 64)), header_of(ref), f"the header of {ref}")


@suite.check("megabytes are read as they were written, in any pieces")
def _(given: Given) -> None:
    data = secrets.token_bytes(3 * MIB)
    given.store.create(given.ref, given.header)
    for at in range(0, len(data), 700 * KIB):
        given.store.append(given.ref, 64 + at, [data[at : at + 700 * KIB]])
    expect(given.store.read(given.ref, 64, len(data)) == data, True, "that all of it is right")
    for at in (0, 700 * KIB - 5, 2 * MIB):
        expect(
            given.store.read(given.ref, 64 + at, 64 * KIB),
            data[at : at + 64 * KIB],
            f"what is at {at}",
        )


# ------------------------------------------------------------ index


@suite.check("rows of the index are read by their number")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header)
    given.store.append_index(given.ref, given.header, 0, row(0) + row(1))
    given.store.append_index(given.ref, given.header, 2, row(2))
    expect(given.store.read_index(given.ref, 0, 3), row(0) + row(1) + row(2), "all of them")
    expect(given.store.read_index(given.ref, 1, 1), row(1), "the second")
    expect(given.store.read_index(given.ref, 2, 9), row(2), "those from the third on")
    expect(given.store.read_index(given.ref, 9, 9), b"", "those behind the last")


@suite.check("rows are repeated at their number")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header)
    given.store.append_index(given.ref, given.header, 0, row(0) + row(8))
    given.store.append_index(given.ref, given.header, 1, row(1) + row(2))
    expect(given.store.read_index(given.ref, 0, 9), row(0) + row(1) + row(2), "the rows")


# ------------------------------------------------------------ keeping


@suite.check("sync takes one ledger, many and none, and is StorageFailed for an absent one")
def _(given: Given) -> None:
    refs = [LedgerRef(given.topic_id + number, 0) for number in range(20)]
    for ref in refs:
        given.store.create(ref, header_of(ref), [b"abc"])
    given.store.append_index(refs[0], header_of(refs[0]), 0, row(0))
    for some in (refs[:1], refs[1:3], refs, []):
        given.store.sync(some)
    given.store.settle()
    expect({given.store.read(ref, 64, 9) for ref in refs}, {b"abc"}, "what they hold")
    absent = LedgerRef(given.topic_id + 30, 0)
    expect_raises(StorageFailed, partial(given.store.sync, [absent]), "syncing an absent one")


@suite.check("what was synced is there for the next process")
def _(given: Given) -> str | None:
    if given.reopen is None:
        return "not tried: this store is gone with its process"
    refs = [LedgerRef(given.topic_id, number) for number in range(3)]
    for ref in refs:
        given.store.create(ref, header_of(ref), [b"first "])
        given.store.append(ref, 70, [b"second"])
        given.store.append_index(ref, header_of(ref), 0, row(0))
    given.store.seal(refs[0])
    given.store.sync(refs)
    store = given.reopen()
    expect(given.own(store), refs, "the list")
    store.recover({ref: _meta(ref, 76) for ref in refs})
    for ref in refs:
        expect(store.read(ref, 64, 100), b"first second", f"what {ref} holds")
        expect(store.read_index(ref, 0, 9), row(0), f"the rows of {ref}")
    return None


@suite.check("the next process cuts what lies behind its snapshot, and cutting never lengthens")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header, [b"abc"])
    given.store.append(given.ref, 67, [b"def"])
    given.store.append(given.ref, 65, [b"BCDEF"])
    given.store.append_index(given.ref, given.header, 0, row(0) + row(1))
    given.store.append_index(given.ref, given.header, 2, row(2))
    given.store.sync([given.ref])
    store = given.reopen() if given.reopen is not None else given.store
    store.recover({given.ref: _meta(given.ref, 68)})
    for size, rows in ((68, 2), (1000, 50)):
        store.truncate(given.ref, size, rows)
        expect(store.read(given.ref, 64, 100), b"aBCD", "what is left")
        expect(store.read_index(given.ref, 0, 9), row(0) + row(1), "the rows that are left")
    store.sync([given.ref])
    if given.reopen is not None:
        store = given.reopen()
        store.recover({given.ref: _meta(given.ref, 68)})
        expect(store.read(given.ref, 64, 100), b"aBCD", "what the process after that finds")


@suite.check("cutting an absent ledger does nothing")
def _(given: Given) -> None:
    given.store.truncate(given.ref, 64, 0)
    expect(given.own(), [], "the list")


@suite.check("a sealed ledger is read on, also while it is tidied")
def _(given: Given) -> None:
    given.store.create(given.ref, given.header)
    for number in range(10):
        given.store.append(given.ref, 64 + number, [b"%d" % number])
        given.store.append_index(given.ref, given.header, number, row(number))
    given.store.sync([given.ref])
    given.store.seal(given.ref)
    rows = b"".join(map(row, range(10)))
    for _ in range(8):
        expect(given.store.read(given.ref, 64, 99), b"0123456789", "what it holds")
        expect(given.store.read(given.ref, 68, 3), b"456", "the middle")
        expect(given.store.read_index(given.ref, 0, 99), rows, "its rows")
        given.store.tidy()


@suite.check("readers see a prefix of what is written, and never anything else")
def _(given: Given) -> None:
    data = secrets.token_bytes(64 * KIB)
    given.store.create(given.ref, given.header)
    is_done = False

    def look() -> None:
        while True:
            was_done = is_done
            found = given.store.read(given.ref, 64, len(data))
            if found != data[: len(found)]:
                fail(f"a reader saw {len(found)} bytes that are not the first of those written")
            if was_done:
                expect(len(found), len(data), "what is read at the end")
                return

    with ThreadPoolExecutor(_READERS) as pool:
        readers = [pool.submit(look) for _ in range(_READERS)]
        try:
            for at in range(0, len(data), 4 * KIB):
                given.store.append(given.ref, 64 + at, [data[at : at + 4 * KIB]])
        finally:
            is_done = True
        for reader in readers:
            reader.result()


# ------------------------------------------------------------ listing and deleting


@suite.check("every ledger is listed, in order")
def _(given: Given) -> None:
    topic = given.topic_id
    refs = [
        LedgerRef(topic, 0),
        LedgerRef(topic, 1),
        LedgerRef(topic, 300),
        LedgerRef(topic + 1, 0),
        LedgerRef(topic + 17, 2),
    ]
    for ref in reversed(refs):
        given.store.create(ref, header_of(ref))
    expect(given.own(), refs, "the list")


@suite.check("a deleted ledger is gone, its neighbours are not, and deleting it again is fine")
def _(given: Given) -> None:
    refs = [LedgerRef(given.topic_id, number) for number in range(3)]
    for ref in refs:
        given.store.create(ref, header_of(ref), [b"abc"])
        given.store.append_index(ref, header_of(ref), 0, row(0))
    given.store.seal(refs[1])
    for _ in range(2):
        given.store.delete(refs[1])
        expect(given.own(), [refs[0], refs[2]], "the list")
    expect(given.store.read(refs[1], 0, 10), b"", "what is read of it")
    expect(given.store.read_index(refs[1], 0, 10), b"", "its rows")
    expect(given.store.read(refs[0], 64, 10), b"abc", "what its neighbour holds")
    given.store.create(refs[1], header_of(refs[1]), [b"new"])
    expect(given.store.read(refs[1], 64, 10), b"new", "what it holds when it is made again")


@suite.check("a deleted topic takes all of its ledgers and no other's")
def _(given: Given) -> None:
    for topic in (given.topic_id, given.topic_id + 16):
        for number in range(3):
            ref = LedgerRef(topic, number)
            given.store.create(ref, header_of(ref))
    for _ in range(2):
        given.store.delete_topic(given.topic_id)
        expect({ref.topic_id for ref in given.own()}, {given.topic_id + 16}, "the topics listed")
    expect(given.store.read(LedgerRef(given.topic_id, 0), 0, 10), b"", "what is read of the topic")


@suite.check("who reads a ledger while it is deleted gets less, and no error")
def _(given: Given) -> None:
    refs = [LedgerRef(given.topic_id, number) for number in range(8)]
    for ref in refs:
        given.store.create(ref, header_of(ref), [b"x" * 1000])

    is_done = False

    def look(ref: LedgerRef) -> None:
        while True:
            was_done = is_done
            found = given.store.read(ref, 64, 1000)
            expect(found in {b"", b"x" * len(found)}, True, "that nothing else is read")
            if was_done:
                expect(found, b"", "what is read of a deleted ledger")
                return

    with ThreadPoolExecutor(_READERS) as pool:
        readers = [pool.submit(look, ref) for ref in refs]
        try:
            for ref in refs:
                given.store.delete(ref)
        finally:
            is_done = True
        for reader in readers:
            reader.result()


@suite.check("what others wrote under the names of a snapshot is gone once it is told")
def _(given: Given) -> str | None:
    if given.reopen is None:
        return "not tried: this store is gone with its process"
    other = header_of(given.ref)._replace(epoch=_EPOCH + 1)
    given.store.create(given.ref, other, [b"of another epoch"])
    given.store.sync([given.ref])
    store = given.reopen()
    store.recover({given.ref: _meta(given.ref, 67)})
    found = store.read(given.ref, 64, 100)
    if found:
        return "it is still read: a reader has to find out by its checksums"
    return None


def _meta(ref: LedgerRef, data_bytes: int) -> LedgerMeta:
    return LedgerMeta(ref.ledger_id, _EPOCH, 100, 101, data_bytes, 1, 0, 0, 0, is_sealed=True)
