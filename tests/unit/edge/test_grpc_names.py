"""Names and numbers of Danube's clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.edge.grpc.names import inner_name, number_of, outer_name
from danubius.errors import InvalidName
from danubius.model.ids import parse_name


@pytest.mark.parametrize("name", ["orders", "a-b_c-9", "x-", "X--y"])
def test_a_name_that_may_be_is_left_alone(name: str) -> None:
    assert inner_name("producer", name) == name


@given(st.text(min_size=1, max_size=24))
def test_any_name_is_spelled_so_that_it_may_be_and_told_back(name: str) -> None:
    inner = inner_name("producer", name)
    assert parse_name("producer", inner) == inner
    assert outer_name(inner) == name


@given(st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=2, unique=True))
def test_two_names_stay_two(names: list[str]) -> None:
    assert inner_name("producer", names[0]) != inner_name("producer", names[1])


def test_no_name_and_a_very_long_one_are_refused() -> None:
    for name in ("", "a" * 201, "." * 100):
        with pytest.raises(InvalidName):
            inner_name("producer", name)


def test_numbers_fit_a_signed_word_and_differ() -> None:
    numbers = {number_of("/default/t", f"p{index}") for index in range(1000)}
    assert len(numbers) == 1000
    assert all(0 < number < 2**63 for number in numbers)
    assert number_of("a", "bc") != number_of("ab", "c")
