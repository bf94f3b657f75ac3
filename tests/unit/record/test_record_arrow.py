"""To Arrow without copies, and from any Arrow column."""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any

import pyarrow as pa
import pytest

from danubius.errors import InvalidArgument, InvalidBatch
from danubius.record.batch import Codec, RecordBatch, stamp
from danubius.record.columns import shift_down
from danubius.record.encode import encode, from_arrow
from danubius.record.key_hash import key_hash

arrow: Any = pa  # which ships without types

COLUMNS = [
    ("topic", "string"),
    ("partition", "int32"),
    ("offset", "int64"),
    ("publish_time", "timestamp[us, tz=UTC]"),
    ("key", "binary"),
    ("payload", "binary"),
    ("attributes", "map<string, string>"),
    ("producer", "string"),
    ("schema_id", "int64"),
    ("schema_version", "int32"),
]


def stamped(codec: Codec = Codec.NONE) -> RecordBatch:
    batch = encode(
        [b"one", b"", b"three"],
        publish_time_us=[1_700_000_000_000_001, 2, 3],
        keys=[b"k", None, b""],
        attributes=[{"a": "b", "ä": ""}, None, {"c": "d"}],
        producer_id=0xABC,
        schema_id=4,
        schema_version=5,
        codec=codec,
    )
    stamp(batch, 77, 1)
    return RecordBatch.parse(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_column_arrives_in_arrow(codec: Codec) -> None:
    table = stamped(codec).to_arrow("/default/orders", 3)
    table.validate(full=True)
    assert [(field.name, str(field.type)) for field in table.schema] == COLUMNS
    columns: dict[str, list[Any]] = table.to_pydict()
    assert columns["topic"] == ["/default/orders"] * 3
    assert columns["partition"] == [3] * 3
    assert columns["offset"] == [77, 78, 79]
    first = dt.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=dt.UTC)
    assert columns["publish_time"][0] == first
    assert columns["key"] == [b"k", None, b""]
    assert columns["payload"] == [b"one", b"", b"three"]
    assert columns["attributes"] == [[("a", "b"), ("ä", "")], [], [("c", "d")]]
    assert columns["producer"] == ["0000000000000abc"] * 3
    assert columns["schema_id"] == [4] * 3
    assert columns["schema_version"] == [5] * 3


def test_payloads_and_keys_are_not_copied() -> None:
    batch = stamped()
    table = batch.to_arrow()
    start = arrow.py_buffer(batch.buffer).address
    for name in ("payload", "key", "publish_time"):
        for buffer in table.column(name).buffers():
            assert buffer is None or start <= buffer.address < start + len(batch.buffer)


def test_a_batch_at_an_odd_address_is_read_too() -> None:
    shifted = bytearray(b"x" + bytes(stamped().buffer))
    table = RecordBatch.parse(memoryview(shifted)[1:]).to_arrow()
    assert table.column("payload").to_pylist() == [b"one", b"", b"three"]


def test_absent_columns_are_null_or_empty() -> None:
    table = RecordBatch.parse(encode([b"a"] * 5, publish_time_us=9)).to_arrow()
    assert table.column("key").to_pylist() == [None] * 5
    assert table.column("attributes").to_pylist() == [[]] * 5
    assert table.column("publish_time").cast(arrow.int64()).to_pylist() == [9] * 5


def test_sparse_offsets_arrive_in_arrow() -> None:
    assert stamped().select([0, 2]).to_arrow().column("offset").to_pylist() == [77, 79]


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 3), (0, 1), (1, 2), (2, 3)])
def test_a_slice_of_arrow_columns_becomes_the_same_batch_as_the_messages(
    start: int, stop: int
) -> None:
    table = stamped().to_arrow().slice(start, stop - start)
    keys = [b"k", None, b""][start:stop]
    expected = encode(
        [b"one", b"", b"three"][start:stop],
        publish_time_us=5,
        keys=keys,
        attributes=[{"a": "b", "ä": ""}, None, {"c": "d"}][start:stop],
        base_sequence=6,
    )
    assert from_arrow(table, publish_time_us=5, base_sequence=6) == expected


@pytest.mark.parametrize(
    "kind",
    [
        arrow.binary(),
        arrow.string(),
        arrow.large_binary(),
        arrow.large_string(),
        arrow.binary_view(),
        arrow.string_view(),
    ],
    ids=str,
)
def test_every_kind_of_binary_or_text_column_is_taken(kind: Any) -> None:
    payload = arrow.array(["a", "", "ü"], arrow.string()).cast(kind)
    batch = RecordBatch.parse(from_arrow(arrow.table({"payload": payload}), publish_time_us=1))
    assert batch.payloads() == [b"a", b"", "ü".encode()]


def test_chunked_columns_are_joined() -> None:
    table = arrow.table(
        {
            "payload": arrow.chunked_array([[b"a"], [b"b", b"c"]]),
            "key": arrow.chunked_array([[None, b"k"], [b""]]),
        }
    )
    batch = RecordBatch.parse(from_arrow(table, publish_time_us=[3, 2, 1]))
    assert batch.payloads() == [b"a", b"b", b"c"]
    assert batch.keys() == [None, b"k", b""]
    assert list(batch.key_hashes()) == [0, key_hash(b"k"), 0]
    assert list(batch.publish_times_us()) == [3, 2, 1]


def test_bytes_under_a_null_key_are_dropped() -> None:
    offsets = arrow.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0")
    keys = arrow.Array.from_buffers(
        arrow.binary(), 2, [arrow.py_buffer(b"\2"), offsets, arrow.py_buffer(b"xxab")]
    )
    table = arrow.table({"payload": [b"", b""], "key": keys})
    batch = RecordBatch.parse(from_arrow(table, publish_time_us=1))
    assert batch.keys() == [None, b"ab"]
    assert b"xx" not in batch.buffer.tobytes()


def test_null_maps_are_empty_attributes() -> None:
    kind = arrow.map_(arrow.string(), arrow.string())
    maps = arrow.array([[("a", "b")], None, []], kind)
    table = arrow.table({"payload": [b""] * 3, "attributes": maps})
    batch = RecordBatch.parse(from_arrow(table, publish_time_us=1))
    assert batch.attributes() == [{"a": "b"}, {}, {}]


@pytest.mark.parametrize(
    "columns",
    [
        {"body": [b"a"]},
        {"payload": [b"a", None]},
        {"payload": [1]},
        {"payload": arrow.array([], arrow.binary())},
        {"payload": [b"a"], "key": [1.5]},
        {"payload": [b"a"], "attributes": ["text"]},
        {
            "payload": [b"a"],
            "attributes": arrow.array([[("a", None)]], arrow.map_(arrow.string(), arrow.string())),
        },
    ],
    ids=lambda columns: ",".join(columns),
)
def test_columns_that_are_no_messages_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        from_arrow(arrow.table(columns), publish_time_us=1)


@pytest.mark.parametrize("offsets", [[9, 7, 3], [5, 4, 12]], ids=["the last", "one between"])
def test_a_column_whose_offsets_fall_is_refused_when_it_is_cut(offsets: list[int]) -> None:
    view = memoryview(struct.pack("<3i", *offsets))
    with pytest.raises(InvalidBatch, match="offsets of a column fall"):
        shift_down(view, offsets[0], offsets[-1])
