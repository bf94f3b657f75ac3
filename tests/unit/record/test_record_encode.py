"""Encoding: what the header says, what columns are left out, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from danubius.errors import InvalidArgument, MessageTooLarge
from danubius.model.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, MESSAGE_BYTES_MAX
from danubius.record.batch import HEADER_BYTES, Codec, Flag, RecordBatch, check_batch, read_header
from danubius.record.encode import encode, encode_one, rewrite_producer

ATTRIBUTES = [{"color": "red"}, None, {"size": "L", "größe": "ü"}]

WRONG_ARGUMENTS: list[dict[str, Any]] = [
    {"payloads": []},
    {"payloads": "text"},
    {"payloads": ["text"]},
    {"payloads": [b"a", 3]},
    {"payloads": b"abc"},
    {"payloads": [memoryview(bytes(8)).cast("i")]},
    {"keys": [b"a", b"b"]},
    {"keys": ["text"]},
    {"attributes": [{}, {}]},
    {"attributes": [{"a": 1}]},
    {"attributes": [{"a": "\ud800"}]},
    {"publish_time_us": [1, 2]},
    {"publish_time_us": 2**63},
    {"payloads": [b"", b""], "publish_time_us": [1, 2**63]},
    {"producer_id": -1},
    {"producer_id": 2**64},
    {"producer_epoch": 2**32},
    {"base_sequence": -1},
    {"base_sequence": 2**63 - 1},
    {"schema_id": 2**63},
    {"schema_version": 2**31},
]


def test_a_small_message_costs_less_than_120_bytes() -> None:
    assert len(encode([b"x" * 7], publish_time_us=1)) - 7 < 120


def test_the_header_holds_what_was_given() -> None:
    batch = encode(
        [b"a", b"b"],
        publish_time_us=[20, 10],
        producer_id=2**64 - 1,
        producer_epoch=3,
        base_sequence=4,
        schema_id=5,
        schema_version=6,
    )
    header = check_batch(batch)
    assert header.length == len(batch)
    assert (header.base_offset, header.epoch) == (0, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**64 - 1, 3, 4)
    assert (header.schema_id, header.schema_version) == (5, 6)
    assert (header.first_time_us, header.last_time_us) == (20, 20)
    assert header.count == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_every_column_comes_back(codec: Codec) -> None:
    payloads = [b"one", b"", b"three" * 100]
    keys = [b"k", None, b""]
    batch = RecordBatch.parse(
        encode(payloads, publish_time_us=[3, 1, 2], keys=keys, attributes=ATTRIBUTES, codec=codec)
    )
    assert batch.header.codec == codec
    assert batch.payloads() == payloads
    assert [batch.payload(index) for index in range(3)] == payloads
    assert batch.keys() == keys
    assert list(batch.publish_times_us()) == [3, 1, 2]
    assert batch.attributes() == [{"color": "red"}, {}, {"size": "L", "größe": "ü"}]
    assert list(batch.offsets()) == [0, 1, 2]


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = encode([b"a", b"b"], publish_time_us=1)
    told = encode([b"a", b"b"], publish_time_us=[1, 1], keys=[None, None], attributes=[None, {}])
    assert told == plain
    assert read_header(plain).flags == 0


def test_the_validity_bitmap_is_there_only_with_null_keys() -> None:
    assert read_header(encode([b""], publish_time_us=1, keys=[b"k"])).flags == Flag.KEYS
    mixed = encode([b"", b""], publish_time_us=1, keys=[b"k", None])
    assert read_header(mixed).flags == Flag.KEYS | Flag.KEY_NULLS


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_body_that_does_not_shrink_stays_uncompressed(codec: Codec) -> None:
    header = check_batch(encode([b"\x9c\x11"], publish_time_us=1, codec=codec))
    assert header.codec == Codec.NONE


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_makes_repetitive_batches_smaller(codec: Codec) -> None:
    batch = encode([b"the same text " * 10] * 100, publish_time_us=1, codec=codec)
    header = check_batch(batch)
    assert header.codec == codec
    assert len(batch) < header.body_bytes / 4


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"payloads": [b"x"], "publish_time_us": 1, **arguments}
    with pytest.raises(InvalidArgument):
        encode(given.pop("payloads"), **given)


def test_too_many_records_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        encode([b""] * (BATCH_RECORDS_MAX + 1), publish_time_us=1)


def test_a_message_up_to_the_limit_is_taken_and_one_over_it_refused() -> None:
    largest = encode([bytes(MESSAGE_BYTES_MAX)], publish_time_us=1)
    assert check_batch(largest).count == 1
    with pytest.raises(MessageTooLarge):
        encode([bytes(MESSAGE_BYTES_MAX + 1)], publish_time_us=1)
    with pytest.raises(MessageTooLarge):
        encode([bytes(MESSAGE_BYTES_MAX - 3)], publish_time_us=1, keys=[b"1234"])
    with pytest.raises(MessageTooLarge):
        encode(
            [bytes(MESSAGE_BYTES_MAX - 3), b""],
            publish_time_us=1,
            attributes=[{"ab": "cd"}, {}],
            codec=Codec.LZ4,
        )


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_over_the_limit_is_refused_even_if_it_would_shrink(codec: Codec) -> None:
    with pytest.raises(MessageTooLarge):
        encode([bytes(1 << 20)] * 17, publish_time_us=1, codec=codec)


def test_the_largest_batch_leaves_room_for_offset_deltas() -> None:
    count = 100_000
    room = BATCH_BYTES_MAX - HEADER_BYTES - 4 * count - (4 * (count + 1) + 4)
    payloads = [b""] * (count - 2) + [bytes(room // 2)] * 2
    batch = RecordBatch.parse(encode(payloads, publish_time_us=1))
    gathered = batch.select([*range(count - 2), count - 1])
    assert gathered.header.length <= BATCH_BYTES_MAX
    everything_but_one = [*range(1, 10), *range(11, count)]
    part = batch.select(everything_but_one)
    assert part.header.length <= BATCH_BYTES_MAX
    assert RecordBatch.parse(part.buffer).end_offset == count
    with pytest.raises(MessageTooLarge):
        encode([*payloads, bytes(16)], publish_time_us=1)


ONE: dict[str, Any] = {
    "publish_time_us": 1,
    "producer_id": 2,
    "producer_epoch": 3,
    "base_sequence": 4,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"publish_time_us": 2**63},
        {"producer_id": -1},
        {"producer_id": 2**64},
        {"producer_epoch": 2**32},
        {"base_sequence": -1},
        {"base_sequence": 2**63 - 1},
    ],
)
def test_a_single_message_is_refused_as_in_any_batch(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as one:
        encode_one(b"x", None, **{**ONE, **wrong})
    with pytest.raises(InvalidArgument) as any_batch:
        encode([b"x"], **{**ONE, **wrong})
    assert str(one.value) == str(any_batch.value)


@pytest.mark.parametrize("key", [None, b"", b"1234"])
def test_a_single_message_up_to_the_limit_is_taken_and_one_over_it_refused(
    key: bytes | None,
) -> None:
    room = MESSAGE_BYTES_MAX - len(key or b"")
    for spare in (0, 1, 100):
        payload = bytes(room - spare)
        assert encode_one(payload, key, **ONE) == encode([payload], keys=[key], **ONE)
    with pytest.raises(MessageTooLarge):
        encode_one(bytes(room + 1), key, **ONE)


def test_rewriting_the_producer_changes_only_its_fields() -> None:
    given: dict[str, Any] = {"publish_time_us": 9, "schema_id": 7, "schema_version": 8}
    batch = encode([b"a"], producer_id=1, producer_epoch=2, base_sequence=3, **given)
    rewrite_producer(batch, 4, 5, 6)
    assert batch == encode([b"a"], producer_id=4, producer_epoch=5, base_sequence=6, **given)


def test_a_refused_rewrite_leaves_the_batch_as_it_was() -> None:
    batch = encode([b"a"], publish_time_us=9)
    before = bytes(batch)
    for fields in ((1, 2**32, 1), (2**64, 1, 1), (1, 1, 2**63)):
        with pytest.raises(InvalidArgument):
            rewrite_producer(batch, *fields)
        assert batch == before


def test_a_piece_is_alone_in_its_batch() -> None:
    assert RecordBatch.parse(encode([b"piece"], publish_time_us=1, is_chunk=True)).is_chunk
    with pytest.raises(InvalidArgument, match="alone in its batch"):
        encode([b"a", b"b"], publish_time_us=1, is_chunk=True)


def test_a_batch_that_expires_is_not_compressed() -> None:
    batch = RecordBatch.parse(
        encode([b"same" * 1000], publish_time_us=1, codec=Codec.ZSTD, expires_us=2**40)
    )
    assert (batch.header.codec, batch.expires_us) == (Codec.NONE, 2**40)
    assert RecordBatch.parse(encode([b"same"], publish_time_us=1)).expires_us is None
    with pytest.raises(InvalidArgument, match="expiry"):
        encode([b"a"], publish_time_us=1, expires_us=2**63)
