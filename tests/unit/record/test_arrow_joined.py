"""Many batches as one of Arrow: the same as each by itself, joined."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.record.arrow import NAMES
from danubius.record.arrow_joined import Part, to_arrow_joined
from danubius.record.batch import Codec, RecordBatch, stamp
from danubius.record.encode import encode

arrow: Any = pa  # which ships without types

keys = st.none() | st.lists(st.none() | st.binary(max_size=3), min_size=4, max_size=4)
attributes = st.none() | st.just([{"a": "b"}, None, {}, {"ä": "", "c": "d"}])
times = st.integers(0, 2**40) | st.lists(st.integers(0, 2**40), min_size=4, max_size=4)


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    """Batches behind each other, with gaps or without, some of them in part."""
    found: list[Part] = []
    offset = 0
    for _ in range(draw(st.integers(1, 5))):
        offset += draw(st.sampled_from([0, 0, 7]))
        count = 4
        encoded = encode(
            [draw(st.binary(max_size=5)) for _ in range(count)],
            publish_time_us=draw(times),
            keys=draw(keys),
            attributes=draw(attributes),
            producer_id=draw(st.sampled_from([1, 1, 2])),
            schema_id=draw(st.sampled_from([0, 0, 5])),
            codec=draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4])),
        )
        stamp(encoded, offset, 1)
        batch = RecordBatch.parse(encoded)
        offset += count
        if draw(st.booleans()):
            batch = batch.select([0, 2, 3])
            count = 3
        first = draw(st.integers(0, count - 1))
        found.append(Part(batch, first, draw(st.integers(first + 1, count))))
    return found


@given(parts(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_it_is_the_same_as_each_by_itself(parts: list[Part], names: list[str]) -> None:
    joined = to_arrow_joined(parts, "/default/t", 3, names)
    each = [
        part.batch.to_arrow("/default/t", 3, names).slice(part.first, part.rows) for part in parts
    ]
    joined.validate(full=True)
    assert joined.schema == each[0].schema
    assert joined.to_pylist() == arrow.Table.from_batches(each).to_pylist()


@pytest.mark.parametrize("rows", [1, 2, 1000, 1025])
def test_offsets_go_on_from_batch_to_batch(rows: int) -> None:
    batches: list[Part] = []
    for number in range(3):
        encoded = encode([b""] * rows, publish_time_us=1)
        stamp(encoded, 10 + number * rows, 1)
        batches.append(Part(RecordBatch.parse(encoded), 0, rows))
    column = to_arrow_joined(batches, "", 0, ["offset"]).column("offset")
    assert column.to_pylist() == list(range(10, 10 + 3 * rows))
