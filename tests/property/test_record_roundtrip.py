"""For any messages: encoding, cutting, compression, chunking and Arrow keep every record as it was."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from danubius.record.batch import HEADER_BYTES, Codec, RecordBatch, check_batch, read_header, stamp
from danubius.record.encode import encode, encode_one, from_arrow
from danubius.record.header import read_expiry
from danubius.record.key_hash import key_hash
from danubius.record.scan import iter_batches, scan


class Record(NamedTuple):
    """One message with all that a batch keeps of it."""

    payload: bytes
    key: bytes | None
    attributes: dict[str, str]
    time_us: int


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RECORD = st.builds(
    Record,
    payload=st.binary(max_size=40) | st.just(b"fixed"),
    key=st.none() | st.binary(max_size=8),
    attributes=st.builds(dict[str, str]) | st.dictionaries(TEXT, TEXT, max_size=3),
    time_us=st.just(1_700_000_000_000_000) | st.integers(-(2**63), 2**63 - 1),
)
RECORDS = st.lists(RECORD, min_size=1, max_size=40)
CODEC = st.sampled_from(Codec)
BASE = st.integers(0, 2**62)


def encoded(records: list[Record], codec: Codec = Codec.NONE, base_sequence: int = 0) -> bytearray:
    return encode(
        [record.payload for record in records],
        publish_time_us=[record.time_us for record in records],
        keys=[record.key for record in records],
        attributes=[record.attributes for record in records],
        producer_id=3,
        base_sequence=base_sequence,
        codec=codec,
    )


def decoded(batch: RecordBatch) -> list[Record]:
    columns = (batch.payloads(), batch.keys(), batch.attributes(), batch.publish_times_us())
    return [Record(*fields) for fields in zip(*columns, strict=True)]


def assert_sound(batch: RecordBatch, records: list[Record], offsets: list[int]) -> None:
    batch = RecordBatch.parse(bytes(batch.buffer))
    assert decoded(batch) == records
    assert list(batch.offsets()) == offsets
    assert batch.end_offset == offsets[-1] + 1
    assert list(batch.key_hashes()) == [key_hash(record.key or b"") for record in records]
    assert batch.header.first_time_us == records[0].time_us
    assert batch.header.last_time_us == max(record.time_us for record in records)
    assert len(batch.buffer) % 8 == 0


@given(records=RECORDS, codec=CODEC, base=BASE)
def test_what_was_encoded_is_decoded(records: list[Record], codec: Codec, base: int) -> None:
    batch = encoded(records, codec)
    header = check_batch(batch)
    assert header.length == len(batch)
    assert header.stored_bytes <= header.body_bytes
    stamp(batch, base, 1)
    check_batch(batch)
    assert_sound(RecordBatch.parse(batch), records, list(range(base, base + len(records))))


@given(
    payload=st.binary(max_size=200),
    key=st.none() | st.binary(max_size=40),
    time_us=st.integers(-(2**63), 2**63 - 1),
    producer_id=st.integers(0, 2**64 - 1),
    producer_epoch=st.integers(0, 2**32 - 1),
    base_sequence=st.integers(0, 2**63 - 2),
)
def test_a_single_message_is_encoded_as_a_batch_of_one(
    payload: bytes,
    key: bytes | None,
    time_us: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    fields: dict[str, Any] = {
        "publish_time_us": time_us,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
    }
    one = encode_one(payload, key, **fields)
    assert one == encode([payload], keys=[key], **fields)
    check_batch(one)


@given(records=RECORDS, codec=CODEC, base=BASE, data=st.data())
def test_any_slice_is_the_batch_of_those_messages(
    records: list[Record], codec: Codec, base: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    batch = encoded(records, codec, base_sequence=7)
    stamp(batch, base, 1)
    part = RecordBatch.parse(batch).slice(start, stop)
    assert_sound(part, records[start:stop], list(range(base + start, base + stop)))
    assert part.header.base_sequence == 7 + start


@given(records=RECORDS, codec=CODEC, base=BASE, data=st.data())
def test_any_selection_of_a_selection_keeps_its_records(
    records: list[Record], codec: Codec, base: int, data: st.DataObject
) -> None:
    batch = encoded(records, codec)
    stamp(batch, base, 1)
    part = RecordBatch.parse(batch)
    offsets = list(range(base, base + len(records)))
    for _ in range(2):
        indexes = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1)))
        part = part.select(indexes)
        records = [records[index] for index in indexes]
        offsets = [offsets[index] for index in indexes]
        assert_sound(part, records, offsets)
        is_run = offsets[-1] - offsets[0] == len(offsets) - 1
        assert part.is_sparse != is_run


@given(
    records=RECORDS,
    codec=CODEC,
    expires_us=st.integers(-(2**63), 2**63 - 1),
    data=st.data(),
)
def test_the_expiry_goes_with_every_part(
    records: list[Record], codec: Codec, expires_us: int, data: st.DataObject
) -> None:
    batch = encode(
        [record.payload for record in records],
        publish_time_us=[record.time_us for record in records],
        keys=[record.key for record in records],
        attributes=[record.attributes for record in records],
        codec=codec,
        expires_us=expires_us,
    )
    header = check_batch(batch)
    assert header.codec == Codec.NONE
    assert read_expiry(batch, header) == expires_us
    assert read_expiry(b"xyz" + batch, header, 3) == expires_us
    part = RecordBatch.parse(batch)
    offsets = list(range(len(records)))
    for _ in range(2):
        indexes = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1)))
        part = part.select(indexes)
        records = [records[index] for index in indexes]
        offsets = [offsets[index] for index in indexes]
        assert part.expires_us == expires_us
        assert_sound(part, records, offsets)


@given(records=RECORDS, codec=CODEC, data=st.data())
def test_arrow_columns_hold_the_messages_and_any_slice_goes_back(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    table = RecordBatch.parse(encoded(records, codec)).to_arrow("/default/t", 1)
    table.validate(full=True)
    assert table.column("payload").to_pylist() == [record.payload for record in records]
    assert table.column("key").to_pylist() == [record.key for record in records]
    maps: list[Any] = table.column("attributes").to_pylist()
    assert [dict(each) for each in maps] == [record.attributes for record in records]
    times = table.column("publish_time").cast(pa.int64()).to_pylist()
    assert times == [record.time_us for record in records]
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    part = from_arrow(
        table.slice(start, stop - start),
        publish_time_us=times[start:stop],
        producer_id=3,
        codec=codec,
    )
    assert part == encoded(records[start:stop], codec)


@given(batches=st.lists(st.tuples(RECORDS, CODEC), max_size=5), data=st.data())
def test_the_scan_finds_the_longest_sound_prefix(
    batches: list[tuple[list[Record], Codec]], data: st.DataObject
) -> None:
    parts = [encoded(*each) for each in batches]
    whole = b"".join(parts)
    assert [decoded(each) for each in iter_batches(whole)] == [records for records, _ in batches]
    cut = data.draw(st.integers(0, len(whole)))
    found = scan(whole[:cut])
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    assert found.valid_bytes == max(end for end in ends if end <= cut)
    assert (found.problem is None) == (cut in ends)
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytearray(whole)
        damaged[at] ^= data.draw(st.integers(1, 255))
        start = max(end for end in ends if end <= at)
        if not 8 <= at - start < 20:
            assert scan(damaged).valid_bytes == start


@given(records=RECORDS, tail=st.binary(max_size=2 * HEADER_BYTES))
def test_the_header_is_read_from_any_position(records: list[Record], tail: bytes) -> None:
    batch = bytes(encoded(records))
    assert read_header(tail + batch, len(tail)) == read_header(batch)
