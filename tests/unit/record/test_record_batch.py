"""The view of a batch, the broker's check, and cutting."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    InvalidBatch,
    MessageTooLarge,
    UnsupportedVersion,
)
from danubius.model.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, MESSAGE_BYTES_MAX, MIB
from danubius.record.batch import (
    HEADER_BYTES,
    Codec,
    Flag,
    RecordBatch,
    check_batch,
    read_header,
    stamp,
)
from danubius.record.checksum import crc32c
from danubius.record.encode import encode
from danubius.record.key_hash import key_hash

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOADS = [b"zero", b"", b"two" * 9, b"three", b"4" * 40]
KEYS = [b"a", None, b"b", None, b""]
TIMES = [50, 10, 40, 30, 20]
MAPS = [{"n": "0"}, {}, {"n": "2", "m": "x"}, {}, {"é": "ü"}]


def full_batch(codec: Codec = Codec.NONE) -> RecordBatch:
    """A batch with every column a producer may send, stamped at offset 1000 with epoch 7."""
    batch = encode(
        PAYLOADS,
        publish_time_us=TIMES,
        keys=KEYS,
        attributes=MAPS,
        producer_id=11,
        producer_epoch=12,
        base_sequence=13,
        schema_id=14,
        schema_version=15,
        codec=codec,
    )
    check_batch(batch)
    stamp(batch, 1000, 7)
    return RecordBatch.parse(batch)


def assert_holds(part: RecordBatch, indexes: list[int]) -> None:
    """The part is a sound batch of exactly these records of `full_batch`."""
    part = RecordBatch.parse(bytes(part.buffer))
    assert len(part) == len(indexes)
    assert part.payloads() == [PAYLOADS[index] for index in indexes]
    assert part.keys() == [KEYS[index] for index in indexes]
    assert list(part.key_hashes()) == [key_hash(KEYS[index] or b"") for index in indexes]
    assert list(part.publish_times_us()) == [TIMES[index] for index in indexes]
    assert part.attributes() == [MAPS[index] for index in indexes]
    assert list(part.offsets()) == [1000 + index for index in indexes]
    assert part.base_offset == 1000 + indexes[0]
    assert part.end_offset == 1001 + indexes[-1]
    header = part.header
    assert header.epoch == 7
    assert (header.producer_id, header.producer_epoch) == (11, 12)
    assert header.base_sequence == 13 + indexes[0]
    assert (header.schema_id, header.schema_version) == (14, 15)
    assert header.first_time_us == TIMES[indexes[0]]
    assert header.last_time_us == max(TIMES[index] for index in indexes)


def resealed(batch: bytes | bytearray, change: Callable[[bytearray], None]) -> bytearray:
    """The batch changed, with a right checksum: what a hostile producer can send."""
    changed = bytearray(batch)
    change(changed)
    struct.pack_into("<I", changed, 20, crc32c(memoryview(changed)[24:]))
    return changed


def put(format_: str, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda buffer: struct.pack_into(format_, buffer, at, value)


def test_stamping_changes_neither_the_checksum_nor_anything_else() -> None:
    batch = encode(PAYLOADS, publish_time_us=1)
    before = bytes(batch)
    stamp(memoryview(batch), 2**40, 9)
    header = check_batch(batch)
    assert (header.base_offset, header.epoch, header.end_offset) == (2**40, 9, 2**40 + 5)
    assert batch[:8] + batch[20:] == before[:8] + before[20:]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_bit_the_producer_wrote_is_protected(codec: Codec) -> None:
    batch = bytearray(full_batch(codec).buffer)
    for bit in range(len(batch) * 8):
        if 8 * 8 <= bit < 20 * 8:
            continue  # stamped by the broker
        batch[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DanubiusError):
            check_batch(batch)
        batch[bit // 8] ^= 1 << bit % 8
    check_batch(batch)


def test_every_truncation_and_extension_is_refused() -> None:
    batch = bytes(full_batch().buffer)
    for length in range(len(batch)):
        with pytest.raises(InvalidBatch):
            check_batch(batch[:length])
    with pytest.raises(InvalidBatch, match="states"):
        check_batch(batch + bytes(8))


def test_a_foreign_or_newer_batch_is_told_apart() -> None:
    batch = bytes(full_batch().buffer)
    with pytest.raises(InvalidBatch, match="DNRB"):
        read_header(b"X" + batch[1:])
    with pytest.raises(UnsupportedVersion, match="version 2"):
        read_header(batch[:24] + b"\x02" + batch[25:])
    with pytest.raises(InvalidBatch, match="too few"):
        read_header(batch, len(batch) - HEADER_BYTES + 1)
    with pytest.raises(InvalidBatch, match="too few"):
        read_header(batch, -1)


@pytest.mark.parametrize("length", [0, 8, HEADER_BYTES - 8, HEADER_BYTES + 1])
def test_a_length_that_cannot_be_walked_by_is_refused(length: int) -> None:
    batch = bytearray(full_batch().buffer)
    struct.pack_into("<I", batch, 4, length)
    with pytest.raises(InvalidBatch, match="length"):
        read_header(batch)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("<B", 25, 3), "codec 3"),
        (put("<H", 26, 128), "flags 0x0080"),
        (put("<H", 26, Flag.KEY_NULLS), "without KEYS"),
        (put("<H", 26, Flag.SPARSE), "SPARSE"),
        (put("<H", 26, Flag.CONTROL), "CONTROL"),
        (put("<I", 28, 0), "record count 0"),
        (put("<I", 28, BATCH_RECORDS_MAX + 1), "record count"),
        (put("<I", 28, 1000), "1000 records do not fit"),
        (put("<I", 44, 2**31), "schema version"),
        (put("<Q", 48, 2**63 - 1), "base sequence"),
        (put("<q", 56, 10**18), "last publish time"),
        (put("<q", 64, 10**18), "no publish time column"),
        (put("<Q", 72, 2**63), "schema id"),
        (put("<I", 80, 17), "multiple of 8"),
        (put("<I", 80, 8), "differs"),
        (put("<I", 84, 8), "does not fit"),
        (put("<i", HEADER_BYTES, 1), "start with 1"),
        (put("<i", HEADER_BYTES + 4, 1 << 20), "does not fit"),
        (put("<i", HEADER_BYTES + 4, -1), "does not fit"),
        (put("<i", HEADER_BYTES + 4, 0), "columns take"),
    ],
)
def test_a_hostile_producer_is_told_what_is_wrong(
    change: Callable[[bytearray], None], words: str
) -> None:
    batch = encode([b"payload" * 2], publish_time_us=1)
    with pytest.raises(InvalidBatch, match=words):
        check_batch(resealed(batch, change))


def test_a_batch_over_the_limits_is_refused_by_the_broker() -> None:
    batch = encode([b"payload"], publish_time_us=1)
    with pytest.raises(MessageTooLarge):
        check_batch(resealed(batch, put("<I", 80, BATCH_BYTES_MAX)))
    large = bytearray(encode([bytes(MESSAGE_BYTES_MAX - 8), bytes(16)], publish_time_us=1))
    # The two messages made one: 16 + 8 MiB - 8 bytes under one offset pair.
    merged = resealed(large, put("<I", 28, 1))
    struct.pack_into("<ii", merged, HEADER_BYTES, 0, MESSAGE_BYTES_MAX + 16)
    with pytest.raises(MessageTooLarge):
        check_batch(resealed(merged, put("<I", 28, 1)))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_slice_is_a_batch_of_those_records(codec: Codec) -> None:
    batch = full_batch(codec)
    for start in range(5):
        for stop in range(start + 1, 6):
            part = batch.slice(start, stop)
            assert_holds(part, list(range(start, stop)))
            assert not part.is_sparse


@pytest.mark.parametrize("codec", list(Codec))
def test_a_selection_is_a_sparse_batch_of_those_records(codec: Codec) -> None:
    batch = full_batch(codec)
    for bits in range(1, 32):
        indexes = [index for index in range(5) if bits >> index & 1]
        part = batch.select(indexes)
        assert_holds(part, indexes)
        assert part.is_sparse == (indexes[-1] - indexes[0] >= len(indexes))


def test_few_of_many_records_are_selected_without_decoding_the_rest() -> None:
    payloads = [b"%d" % number for number in range(1000)]
    batch = RecordBatch.parse(encode(payloads, publish_time_us=1, keys=payloads))
    part = RecordBatch.parse(batch.select([1, 500, 999]).buffer)
    assert part.payloads() == part.keys() == [b"1", b"500", b"999"]
    assert batch._payloads is None


def test_cutting_a_sparse_batch_keeps_the_offsets() -> None:
    sparse = full_batch().select([0, 2, 3, 4])
    assert_holds(sparse.slice(0, 2), [0, 2])
    assert_holds(sparse.select([0, 2, 3]), [0, 3, 4])
    run = sparse.slice(1, 4)
    assert_holds(run, [2, 3, 4])
    assert not run.is_sparse


def test_a_slice_of_everything_is_the_batch_itself() -> None:
    batch = full_batch()
    assert batch.slice(0, 5) is batch
    assert batch.select(range(5)) is batch


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 6), (5, 6)])
def test_a_slice_outside_the_batch_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidArgument):
        full_batch().slice(start, stop)


@pytest.mark.parametrize("indexes", [[], [-1, 1], [0, 5], [1, 1], [2, 1, 4], [0, 3, 2, 4]])
def test_a_selection_that_does_not_rise_inside_the_batch_is_refused(indexes: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        full_batch().select(indexes)


def test_a_sparse_or_control_batch_is_read_but_not_taken_from_a_producer() -> None:
    sparse = full_batch().select([0, 2])
    with pytest.raises(InvalidBatch, match="SPARSE"):
        check_batch(sparse.buffer)
    control = resealed(encode([b"x"], publish_time_us=1), put("<H", 26, Flag.CONTROL))
    assert RecordBatch.parse(control).header.is_control
    with pytest.raises(InvalidBatch, match="CONTROL"):
        check_batch(control)


def test_offsets_that_fall_in_the_middle_are_found_when_decoding() -> None:
    batch = encode([b"aa", b"bb", b"cc"], publish_time_us=1)
    for value in (-1, 5, 7, 2**31 - 1):
        hostile = RecordBatch.parse(resealed(batch, put("<i", HEADER_BYTES + 4, value)))
        with pytest.raises(InvalidBatch):
            hostile.payloads()
        with pytest.raises(InvalidBatch):
            hostile.slice(1, 2)
        with pytest.raises(InvalidBatch):
            hostile.payload(1)
        with pytest.raises(InvalidBatch):
            hostile.to_arrow()


def sawtooth(batch: bytearray, at: int, count: int, top: int) -> RecordBatch:
    """Offsets at `at` that alternate between 0 and `top`: every second value is the whole column."""
    offsets = [0, top] * (count // 2) + [top]

    def change(body: bytearray) -> None:
        struct.pack_into(f"<{count + 1}i", body, at, *offsets)

    return RecordBatch.parse(resealed(batch, change))


def test_attributes_that_overlap_are_refused_before_they_multiply() -> None:
    count = 4000
    maps: list[dict[str, str] | None] = [{"a": ""}] * count
    batch = encode([b""] * count, publish_time_us=1, attributes=maps)
    at = RecordBatch.parse(batch).columns.map_offsets_at
    assert at is not None
    hostile = sawtooth(batch, HEADER_BYTES + at, count, count)
    check_batch(bytes(hostile.buffer))
    tracemalloc.start()
    try:
        for indexes in (range(0, count, 2), range(0, count, 20)):
            with pytest.raises(InvalidBatch, match="fall"):
                hostile.select(indexes)
        with pytest.raises(InvalidBatch, match="fall"):
            hostile.attributes()
        with pytest.raises(InvalidBatch):
            hostile.to_arrow()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(hostile.buffer) + MIB


@pytest.mark.parametrize("column", ["payload", "key", "names", "values"])
def test_values_that_overlap_are_refused_before_they_multiply(column: str) -> None:
    count = 400
    texts = ["x" * 10] * count
    batch = encode(
        [b"p" * 10] * count,
        publish_time_us=1,
        keys=[b"k" * 10] * count,
        attributes=[{text: text} for text in texts],
    )
    place = getattr(RecordBatch.parse(batch).columns, column)
    hostile = sawtooth(batch, HEADER_BYTES + place.offsets_at, count, 10 * count)
    check_batch(bytes(hostile.buffer))
    for step in (2, 20):
        with pytest.raises(InvalidBatch, match="fall"):
            RecordBatch.parse(hostile.buffer).select(range(0, count, step))


def test_a_selection_costs_the_same_per_record_however_long_the_batch_is() -> None:
    count = BATCH_RECORDS_MAX
    keys = [None, b""] * (count // 2)
    batch = RecordBatch.parse(encode([b""] * count, publish_time_us=1, keys=keys))
    started_ns = time.process_time_ns()
    part = batch.select(range(0, count, 2))
    assert part.keys() == [None] * (count // 2)
    # Tenths of a second; shifting a number as long as the batch for each record took eight.
    assert time.process_time_ns() - started_ns < 3_000_000_000


def test_deltas_that_do_not_rise_are_found() -> None:
    sparse = full_batch().select([0, 2, 4])
    at = len(sparse.buffer) - 16
    for value, start in ((0, 0), (4, 1), (-3, 0)):
        hostile = RecordBatch.parse(resealed(bytes(sparse.buffer), put("<i", at + 4, value)))
        with pytest.raises(InvalidBatch, match="rise"):
            hostile.offsets()
        with pytest.raises(InvalidBatch, match="rise"):
            hostile.slice(start, start + 2)


def test_an_attribute_that_is_not_utf8_is_found() -> None:
    batch = encode([b""], publish_time_us=1, attributes=[{"name": "value"}])
    at = batch.index(b"value")
    hostile = RecordBatch.parse(resealed(batch, put("<B", at, 0xFF)))
    with pytest.raises(InvalidBatch, match="UTF-8"):
        hostile.attributes()
    with pytest.raises(InvalidBatch):
        hostile.to_arrow()


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_body_of_another_length_is_found(codec: Codec) -> None:
    batch = encode([b"same" * 100], publish_time_us=1, codec=codec)
    length = read_header(batch).body_bytes
    for wrong in (length - 8, length + 8, BATCH_BYTES_MAX - 1000 & ~7):
        hostile = RecordBatch.parse(resealed(batch, put("<I", 80, wrong)))
        with pytest.raises(InvalidBatch):
            hostile.payloads()


def test_one_payload_is_indexed_like_a_list() -> None:
    batch = full_batch()
    assert batch.payload(-1) == PAYLOADS[-1]
    with pytest.raises(IndexError):
        batch.payload(5)
    assert batch.payloads()[2] == batch.payload(2)


def test_the_raw_payload_column_is_the_memory_of_the_batch() -> None:
    batch = RecordBatch.parse(encode([b"ab", b"c"], publish_time_us=1))
    offsets, data = batch.payload_data()
    assert offsets.tolist() == [0, 2, 3]
    assert bytes(data) == b"abc"
    assert data.obj is batch.buffer.obj


def test_columns_that_are_absent_read_as_their_defaults() -> None:
    batch = RecordBatch.parse(encode([b"a", b"b"], publish_time_us=5))
    assert not batch.has_keys
    assert not batch.has_attributes
    assert batch.keys() == [None, None]
    assert list(batch.key_hashes()) == [0, 0]
    assert list(batch.publish_times_us()) == [5, 5]
    first, second = batch.attributes()
    assert first == second == {}
    assert first is not second
    assert batch.offsets() == range(2)


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 20_000])
def test_values_of_one_size_are_split_at_any_count(count: int) -> None:
    payloads = [number.to_bytes(4, "big") for number in range(count)]
    assert RecordBatch.parse(encode(payloads, publish_time_us=1)).payloads() == payloads
