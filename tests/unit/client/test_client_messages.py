"""What users hold: receipts, messages, received batches; and the public names."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

import danubius
from danubius.client.messages import Handout, ReceivedBatch, open_delivery, to_datetime, to_time_us
from danubius.client.options import parse_codec, parse_spec, parse_start, to_milliseconds
from danubius.errors import InvalidArgument
from danubius.model.subscription import EARLIEST, LATEST, AtOffset, AtTime
from danubius.record import compression
from danubius.record.batch import HEADER_BYTES, Codec, RecordBatch, stamp
from danubius.record.checksum import crc32c
from danubius.record.encode import encode


def stored(first: int, payloads: list[bytes], **columns: object) -> bytearray:
    batch = encode(payloads, publish_time_us=1_000_000, **columns)  # pyright: ignore[reportArgumentType]
    stamp(batch, first, 1)
    return batch


def view(*batches: bytearray, first: int = 0, end: int = 1 << 40) -> ReceivedBatch:
    return open_delivery("/default/t", memoryview(b"".join(batches)), first, end, 2)


# ---------------------------------------------------------------- receipts


def test_receipts_are_computed_from_the_batches() -> None:
    receipts = danubius.Receipts("/default/t", [(10, 3), (100, 2)])
    assert len(receipts) == 5
    assert [receipt.offset for receipt in receipts] == [10, 11, 12, 100, 101]
    assert [receipts[i].offset for i in range(5)] == [10, 11, 12, 100, 101]
    assert receipts[-1].offset == 101
    assert [receipt.offset for receipt in receipts[1:4]] == [11, 12, 100]
    assert (receipts.first_offset, receipts.last_offset) == (10, 101)
    with pytest.raises(IndexError):
        receipts[5]


def test_no_messages_give_no_receipts() -> None:
    receipts = danubius.Receipts("/default/t", [])
    assert len(receipts) == 0
    assert list(receipts) == []


# ---------------------------------------------------------------- received batches


def test_a_batch_shows_its_messages_as_columns_and_one_by_one() -> None:
    batch = view(
        stored(5, [b"a", b"b"], keys=[b"k", None]),
        stored(7, [b"c"], attributes=[{"x": "y"}]),
    )
    assert len(batch) == 3
    assert batch.payloads == [b"a", b"b", b"c"]
    assert batch.keys == [b"k", None, None]
    assert batch.attributes == [{}, {}, {"x": "y"}]
    assert batch.offsets == [5, 6, 7]
    assert batch.publish_times == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 3
    assert (batch.first_offset, batch.last_offset) == (5, 7)
    assert batch.ranges == [(5, 8)]
    messages = batch.messages()
    assert [m.payload for m in messages] == batch.payloads
    assert [m.offset for m in messages] == batch.offsets
    assert messages[0].key == b"k"
    assert messages[2].attributes == {"x": "y"}
    assert {m.redelivery_count for m in messages} == {2}
    assert {m.topic for m in messages} == {"/default/t"}


@given(st.data())
def test_a_window_on_a_delivery_is_the_same_in_every_column(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    batches: list[bytearray] = []
    at = 10
    for count in counts:
        batches.append(stored(at, [b"%d" % i for i in range(at, at + count)]))
        at += count
    first = data.draw(st.integers(8, at))
    end = data.draw(st.integers(first, at + 2))
    batch = view(*batches, first=first, end=end)
    expected = [x for x in range(10, at) if first <= x < end]
    assert batch.offsets == expected
    assert batch.payloads == [b"%d" % x for x in expected]
    assert [m.offset for m in batch] == expected
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert batch.part(start, stop).offsets == expected[start:stop]


def test_single_records_of_a_batch_are_acknowledged_as_what_they_are() -> None:
    whole = RecordBatch.parse(stored(0, [b"%d" % i for i in range(8)]))
    sparse = bytearray(whole.select([1, 2, 5, 7]).buffer)
    batch = view(sparse)
    assert batch.offsets == [1, 2, 5, 7]
    assert batch.ranges == [(1, 3), (5, 6), (7, 8)]
    assert view(sparse, first=2, end=6).offsets == [2, 5]


def test_a_damaged_delivery_is_an_error() -> None:
    data = stored(0, [b"abc"])
    data[-9] ^= 1
    with pytest.raises(danubius.InvalidBatch):
        view(data)


def test_an_undecodable_batch_is_an_error_once_and_the_rest_goes_on() -> None:
    bad = stored(1, [b"x" * 1000], codec=Codec.LZ4)
    bad[HEADER_BYTES + 8 :] = bytes(len(bad) - HEADER_BYTES - 8)
    bad[20:24] = crc32c(bad[24:]).to_bytes(4, "little")
    batch = view(stored(0, [b"before"]), bad, stored(2, [b"behind", b"it"]))
    assert batch.ranges == [(0, 4)]
    handout = Handout()
    handout.hold(batch)
    first = handout.next_or_none()
    assert first is not None
    assert first.payload == b"before"
    with pytest.raises(danubius.InvalidBatch, match="1 messages at offset 1 of /default/t"):
        handout.next_or_none()
    rest = handout.take_rest()
    assert rest is not None
    assert rest.payloads == [b"behind", b"it"]
    with pytest.raises(danubius.InvalidBatch, match="at offset 1"):
        _ = batch.payloads


def test_arrow_columns_cover_the_window_only() -> None:
    batch = view(stored(0, [b"a", b"b"]), stored(2, [b"c", b"d"]), first=1, end=3)
    table = batch.to_arrow()  # pyright: ignore[reportUnknownVariableType]  # pyarrow comes without types
    assert table.column("payload").to_pylist() == [b"b", b"c"]
    assert table.column("offset").to_pylist() == [1, 2]
    assert table.schema.names[0] == "topic"


def test_what_was_not_handed_out_can_be_taken_as_a_batch() -> None:
    handout = Handout()
    assert handout.next_or_none() is None
    assert handout.take_rest() is None
    handout.hold(view(stored(0, [b"a", b"b", b"c"])))
    first = handout.next_or_none()
    assert first is not None
    assert first.offset == 0
    rest = handout.take_rest()
    assert rest is not None
    assert rest.offsets == [1, 2]
    assert handout.next_or_none() is None


def test_a_missing_package_drops_nothing_that_was_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handout = Handout()
    packed = stored(0, [b"a" * 1000, b"b" * 1000], codec=Codec.LZ4)
    handout.hold(view(packed, stored(2, [b"c"])))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "lz4.block", None)
        compression._package.cache_clear()
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="pip install"):
                handout.next_or_none()
        assert not handout.is_empty
    found = [handout.next_or_none() for _ in range(4)]
    assert [message and message.offset for message in found] == [0, 1, 2, None]


# ---------------------------------------------------------------- options


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_are_exact_to_the_microsecond(time_us: int) -> None:
    assert to_time_us(to_datetime(time_us)) == time_us


def test_a_start_is_a_word_an_offset_or_a_time() -> None:
    zone = timezone(timedelta(hours=2))
    assert parse_start("earliest") == EARLIEST
    assert parse_start("latest") == LATEST
    assert parse_start(7) == AtOffset(7)
    assert parse_start(datetime(1970, 1, 1, 2, 0, 1, tzinfo=zone)) == AtTime(1_000_000)


@pytest.mark.parametrize("start", [-1, True, "first", None, 1.5, datetime(2024, 1, 1)])  # noqa: DTZ001
def test_another_start_is_refused(start: object) -> None:
    with pytest.raises(InvalidArgument, match="start is"):
        parse_start(start)  # pyright: ignore[reportArgumentType]  # that is the point


def test_words_are_refused_with_the_right_ones() -> None:
    with pytest.raises(InvalidArgument, match="'reliable', 'non-reliable'"):
        parse_spec("durable", "synced")
    with pytest.raises(InvalidArgument, match="'written', 'synced'"):
        parse_spec("reliable", "fast")
    with pytest.raises(InvalidArgument, match="'lz4' or 'zstd'"):
        parse_codec("gzip")


def test_durations_are_rounded_up() -> None:
    assert to_milliseconds("delay", 0.0001) == 1
    assert to_milliseconds("delay", timedelta(seconds=2)) == 2000
    assert to_milliseconds("delay", None) is None
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="delay is"):
            to_milliseconds("delay", bad)


# ---------------------------------------------------------------- the package


def test_every_public_name_is_there() -> None:
    for name in danubius.__all__:
        assert getattr(danubius, name) is not None
    assert set(danubius.__all__) <= set(dir(danubius))
    with pytest.raises(AttributeError):
        danubius.nothing_of_this_name  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_client_needs_no_heavy_package() -> None:
    program = (
        "import sys, danubius, danubius.blocking; danubius.connect; danubius.Producer;"
        "heavy = {'pyarrow', 'lz4', 'zstandard', 'uvloop', 'click', 'rich', 'starlette'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout.strip() == b"[]"


def test_importing_the_package_loads_neither_client_nor_loop() -> None:
    program = "import sys, danubius; print([m for m in ('asyncio', 'msgspec') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout.strip() == b"[]"
