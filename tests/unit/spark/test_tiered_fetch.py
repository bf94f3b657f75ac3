# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Rows of a range that lies in objects and in the broker: right whatever goes wrong, or an error."""

from __future__ import annotations

import contextlib
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danubius.errors import (
    DanubiusError,
    LedgerDamaged,
    ObjectNotFound,
    StorageFailed,
    TierMisconfigured,
)
from danubius.ledger.entry import LedgerMeta, LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.model.admin_replies import LedgerSummary
from danubius.model.topic import incarnation_of
from danubius.record.checksum import crc32c
from danubius.record.encode import encode
from danubius.record.header import stamp
from danubius.record.ledger_file import BlockRow, LedgerHeader
from danubius.record.scan import iter_batches
from danubius.spark.connection.fetching import Payload, Wanted
from danubius.spark.source.locating import Listing
from danubius.spark.source.planning import ColdObject, Range, seams
from danubius.spark.source.rows import read_rows
from danubius.spark.source.tiered_fetch import AHEAD, TieredFetch
from danubius.tier.core.object_format import object_name
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.packing import LedgerPacker
from faulty_objects import FaultyObjects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.spark.connection.fetching import FetchClient
    from danubius.spark.source.options import ReadFrom
    from danubius.tier.objects import ObjectStore

TOPIC = 9
EPOCH = 3
FETCH_BYTES = 1 << 16
RECORDS = 5
"""Of a batch."""


class Topic:
    """Batches of numbered messages: some ledgers in objects, and all of it in a broker."""

    def __init__(self, ledgers: list[int], hot: int, *, payload_bytes: int = 10) -> None:
        """Batches of each ledger, and of what is in none."""
        self.batches: list[tuple[int, bytes]] = []
        self.asked: list[tuple[int, int]] = []
        self.cold: list[ColdObject] = []
        self.objects = FaultyObjects(MemoryObjects())
        self._payload_bytes = payload_bytes
        for number, batches in enumerate(ledgers):
            self._add_ledger(number, batches)
        for _ in range(hot):
            self._batch()
        self.end = len(self.batches) * RECORDS

    def _batch(self) -> bytes:
        first = len(self.batches) * RECORDS
        payloads = [b"%d/" % n + bytes(self._payload_bytes) for n in range(first, first + RECORDS)]
        batch = encode(payloads, publish_time_us=first)
        stamp(batch, first, 1)
        self.batches.append((first, bytes(batch)))
        return bytes(batch)

    def _add_ledger(self, number: int, batches: int) -> None:
        ref, base = LedgerRef(TOPIC, number), len(self.batches) * RECORDS
        store = MemoryLedgerStore()
        store.create(ref, LedgerHeader(TOPIC, number, base, EPOCH, 0))
        rows: list[BlockRow] = []
        position, offset = 64, base
        for at in range(0, batches, 2):
            count = min(2, batches - at)
            block = b"".join(self._batch() for _ in range(count))
            rows.append(BlockRow(offset, position, len(block), crc32c(block), 0, count * RECORDS))
            store.append(ref, position, [block])
            position, offset = position + len(block), offset + count * RECORDS
        meta = LedgerMeta(number, EPOCH, base, offset, position, len(rows), 0, 0, 0, is_sealed=True)
        name = object_name("a" * 32, TOPIC, number, EPOCH)
        packer = LedgerPacker(store, ref, meta, rows)
        assert self.objects.put(name, packer.parts())
        assert packer.footer is not None
        self.cold.append(ColdObject(name, base, offset, position, packer.footer.object_bytes))

    def fetch(self, wanted: Wanted) -> Iterator[Payload]:
        """As a broker: from the batch that holds the first offset on, and some beyond the end."""
        begin, end = wanted.begin, wanted.end
        self.asked.append((begin, end))
        found = [data for first, data in self.batches if first + RECORDS > begin]
        last = next((n for n, (first, _) in enumerate(self.batches) if first >= end), None)
        skipped = len(self.batches) - len(found)
        data = b"".join(found[: None if last is None else last - skipped + 3])
        yield Payload(memoryview(data), is_proven=False)

    def read(
        self,
        begin: int,
        end: int,
        read_from: ReadFrom = "auto",
        *,
        objects: ObjectStore | None = None,
    ) -> list[int]:
        def opened() -> ObjectStore:
            return objects or self.objects

        range_ = Range("/d/t", 0, "/d/t", begin, end, segments=seams(begin, end, self.cold))
        self.source = TieredFetch(cast("FetchClient", self), range_, read_from, opened)
        numbers: list[int] = []
        for batch in read_rows(
            self.source, range_, ("offset", "payload"), FETCH_BYTES, lossy=False
        ):
            offsets = batch.column(0).to_pylist()
            payloads = [int(p.partition(b"/")[0]) for p in batch.column(1).to_pylist()]
            assert offsets == payloads
            numbers += offsets
        return numbers


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 9), max_size=5),
    st.integers(0, 6),
    st.tuples(st.integers(0, 200), st.integers(0, 200)),
)
def test_a_range_comes_whole_across_all_seams(
    ledgers: list[int], hot: int, ends: tuple[int, int]
) -> None:
    topic = Topic(ledgers, hot)
    begin, end = sorted(min(at, topic.end) for at in ends)
    assert topic.read(begin, end) == list(range(begin, end))
    seam = topic.cold[-1].end if topic.cold else 0
    asked = [(max(begin, seam), end)] if end > max(begin, seam) else []
    assert topic.asked == asked, "the broker is asked for what is in no object, in one go"


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(["fail", "flip", "cut", "gone", "down"]))
def test_whatever_goes_wrong_rows_are_right_or_there_is_an_error(seed: int, harm: str) -> None:
    dice = random.Random(seed)
    topic = Topic([dice.randint(1, 30) for _ in range(4)], 2, payload_bytes=2000)
    begin, end = sorted(dice.sample(range(topic.end), 2))
    victim = dice.choice(topic.cold)
    match harm:
        case "fail":
            topic.objects.fail_at(dice.randint(1, 8), "get")
        case "flip":
            topic.objects.flip_reads(dice.randrange(victim.object_bytes))
        case "cut":
            topic.objects.cut_reads(dice.randint(1, 500), times=dice.randint(1, 9))
        case "gone":
            topic.objects.inner.delete(victim.name)
        case _:
            topic.objects.before["get"] = lambda _: (
                topic.objects.go_down() if dice.random() < 0.3 else None
            )
    expected = list(range(begin, end))
    assert topic.read(begin, end) == expected
    with contextlib.suppress(DanubiusError):
        assert topic.read(begin, end, "tier") == expected


def test_bytes_that_are_wrong_once_are_read_again_and_the_broker_is_not_asked() -> None:
    topic = Topic([40], 0, payload_bytes=2000)
    topic.objects.flip_reads(20_000, times=1)
    assert topic.read(0, topic.end, "tier") == list(range(topic.end))
    topic.objects.flip_reads(topic.cold[0].object_bytes - 5, times=1)
    assert topic.read(0, topic.end, "tier") == list(range(topic.end))
    topic.objects.cut_reads(3, times=1)
    assert topic.read(0, topic.end, "tier") == list(range(topic.end))
    assert topic.asked == []


def test_what_stays_wrong_in_one_object_is_asked_of_the_broker_once_and_the_next_is_read() -> None:
    topic = Topic([40, 40, 40], 0, payload_bytes=2000)
    middle = topic.cold[1]
    topic.objects.inner.delete(middle.name)
    assert topic.read(3, topic.end - 3) == list(range(3, topic.end - 3))
    assert topic.asked == [(middle.base, middle.end)]
    assert (topic.source.object_segments, topic.source.fallbacks) == (2, 1)
    topic = Topic([40, 40], 0, payload_bytes=2000)
    topic.objects.flip_reads(topic.cold[0].data_bytes // 2)
    assert topic.read(0, topic.end) == list(range(topic.end))
    assert [end for _, end in topic.asked] == [ledger.end for ledger in topic.cold]
    assert all(
        begin > ledger.base for (begin, _), ledger in zip(topic.asked, topic.cold, strict=True)
    )


def test_a_store_that_is_down_is_tried_once_and_the_broker_gives_the_rest_in_one_go() -> None:
    topic = Topic([4] * 10, 3)
    topic.objects.go_down()
    assert topic.read(1, topic.end) == list(range(1, topic.end))
    assert topic.asked == [(1, topic.end)]
    assert topic.objects.calls["get"] <= 3
    assert topic.source.fallbacks == 1


@pytest.mark.parametrize(
    ("harm", "error", "says"),
    [
        ("gone", ObjectNotFound, "has no object"),
        ("wrong", LedgerDamaged, "fails its checksum"),
        ("other", LedgerDamaged, "is of another ledger"),
        ("short", LedgerDamaged, "cut short"),
        ("down", StorageFailed, "does not answer"),
    ],
)
def test_with_tier_the_error_names_what_is_not_there(
    harm: str, error: type[DanubiusError], says: str
) -> None:
    topic = Topic([4, 4], 0)
    first, second = topic.cold
    inner = topic.objects.inner
    content = bytearray(inner.get(second.name, 0, 1 << 20))
    match harm:
        case "gone":
            inner.delete(second.name)
        case "wrong":
            content[100] ^= 1
            inner.put(second.name, [bytes(content)], replace=True)
        case "other":
            inner.put(second.name, [inner.get(first.name, 0, 1 << 20)], replace=True)
            topic.cold[1] = ColdObject(
                second.name, second.base, second.end, first.data_bytes, first.object_bytes
            )
        case "short":
            inner.put(second.name, [bytes(content[:-9])], replace=True)
        case _:
            topic.objects.go_down()
    with pytest.raises(error, match=says) as caught:
        topic.read(0, topic.end, "tier")
    assert "of /d/t could not be read" in caught.value.message
    assert "readFrom = auto" in caught.value.message
    assert topic.asked == []


def test_a_store_that_cannot_be_opened_is_the_brokers_affair_or_an_error() -> None:
    topic = Topic([4, 4], 2)

    def refuse() -> ObjectStore:
        raise TierMisconfigured("no credentials")

    segments = seams(0, topic.end, topic.cold)
    range_ = Range("/d/t", 0, "/d/t", 0, topic.end, segments=segments)
    source = TieredFetch(cast("FetchClient", topic), range_, "auto", refuse)
    batches = read_rows(source, range_, ("offset",), FETCH_BYTES, lossy=False)
    offsets = [offset for batch in batches for offset in batch.column(0).to_pylist()]
    assert offsets == list(range(topic.end))
    assert topic.asked == [(0, topic.end)]
    source = TieredFetch(cast("FetchClient", topic), range_, "tier", refuse)
    with pytest.raises(TierMisconfigured, match="no credentials"):
        list(source.fetch(Wanted("/d/t", 0, topic.end, FETCH_BYTES)))


def test_objects_of_another_topic_of_the_name_do_not_count() -> None:
    name = object_name("a" * 32, TOPIC, 0, EPOCH)
    line = LedgerSummary("/d/t", 0, EPOCH, 0, 5, 100, 0, 0, 0, True, "both", name, 300)
    local = LedgerSummary("/d/t", 1, EPOCH, 5, 9, 100, 0, 0, 0, True, "local")
    listing = Listing("fs:///x", {"/d/t": [line, local]})
    expected = [ColdObject(name, 0, 5, 100, 300)]
    assert listing.objects_of("/d/t", incarnation_of(1_700_000_000_000, TOPIC)) == expected
    assert listing.objects_of("/d/t", 0) == expected, "an older broker does not tell"
    assert listing.objects_of("/d/t", incarnation_of(1_700_000_000_000, TOPIC + 1)) == []
    assert listing.objects_of("/d/other", 0) == []


def test_no_more_is_read_ahead_than_is_bounded() -> None:
    topic = Topic([200], 0, payload_bytes=10_000)
    range_ = Range("/d/t", 0, "/d/t", 0, topic.end, segments=seams(0, topic.end, topic.cold))
    source = TieredFetch(cast("FetchClient", topic), range_, "tier", lambda: topic.objects)
    reading = source.fetch(Wanted("/d/t", 0, topic.end, FETCH_BYTES))
    seen: list[int] = []
    for payload in reading:
        seen += [batch.base_offset for batch in iter_batches(payload.data)]
        taken = len(seen) // 2
        assert topic.objects.calls["get"] <= 1 + taken + AHEAD
    assert all(later - earlier == RECORDS for earlier, later in pairwise(seen))
    assert topic.objects.calls["get"] == 101, "one for the index, one a piece"
    reading = source.fetch(Wanted("/d/t", 0, topic.end, FETCH_BYTES))
    next(reading)
    cast("Any", reading).close()
    assert topic.objects.calls["get"] <= 101 + 2 + AHEAD, "whoever has enough asks for no more"
