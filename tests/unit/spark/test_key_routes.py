"""Partitions of whole key columns: the same as a client producer finds key by key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from danubius.model.partitions import fnv1a64, route
from danubius.spark.sink import key_routes

arrow: Any = pa  # which ships without types


@given(
    st.lists(st.binary(max_size=40) | st.none(), min_size=1), st.integers(0, 5), st.integers(1, 7)
)
def test_a_column_is_routed_as_its_keys_are(
    keys: list[bytes | None], cut: int, partitions: int
) -> None:
    column = arrow.array([b"before"] * cut + keys, arrow.binary()).slice(cut)
    homes, turn = key_routes.partitions_of(column, len(keys), partitions, 2 % partitions)
    expected_turn = 2 % partitions
    for key, home in zip(keys, homes.tolist(), strict=True):
        if key is None:
            assert home == expected_turn
            expected_turn = (expected_turn + 1) % partitions
        else:
            assert home == route(key, partitions)
    assert turn == expected_turn


def test_text_is_hashed_as_its_bytes() -> None:
    words = ["", "a", "Zürich", "Добрый день"]
    hashes = key_routes.fnv1a64_column(arrow.array(words, arrow.string())).tolist()
    assert hashes == [fnv1a64(word.encode()) for word in words]


def test_without_keys_rows_go_round() -> None:
    homes, turn = key_routes.partitions_of(None, 5, 3, 1)
    assert homes.tolist() == [1, 2, 0, 1, 2]
    assert turn == 0
