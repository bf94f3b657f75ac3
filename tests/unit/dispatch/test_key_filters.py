"""Key filters: what matches, and what is refused."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.errors import InvalidArgument
from danubius.model.key_filters import KeyFilter, check_key_filters
from danubius.model.subscription import SubscriptionType

KEY_SHARED = SubscriptionType.KEY_SHARED


@pytest.mark.parametrize(
    ("globs", "key", "expected"),
    [
        (["eu-*"], b"eu-1", True),
        (["eu-*"], b"eu-", True),
        (["eu-*"], b"EU-1", False),
        (["eu-*"], b"us-eu-1", False),
        (["eu-*", "us-*"], b"us-7", True),
        (["*-vip"], b"eu-7-vip", True),
        (["*-vip"], b"eu-7-vip-", False),
        (["a*b*c"], b"aXbYbZc", True),
        (["a*b*c"], b"aXcYb", False),
        (["a*ab"], b"aab", True),
        (["a*ab"], b"ab", False),
        (["?"], "ü".encode(), True),
        (["?"], b"\xff", True),
        (["?"], b"", False),
        (["*"], b"", True),
        (["*"], b"line\nfeed", True),
        (["a.c"], b"abc", False),
        (["a|b"], b"a", False),
        (["**"], b"x", True),
    ],
)
def test_what_matches(globs: list[str], key: bytes, expected: bool) -> None:
    assert KeyFilter(check_key_filters(globs, KEY_SHARED)).accepts(key) is expected


@given(st.text("ab*?", min_size=1, max_size=12), st.text("ab", max_size=20))
def test_the_same_matches_as_in_a_shell(glob: str, key: str) -> None:
    assert KeyFilter([glob]).accepts(key.encode()) == fnmatch.fnmatchcase(key, glob)


def test_many_stars_do_not_take_for_ever() -> None:
    glob = "*a" * 90 + "*b"
    assert not KeyFilter([glob]).accepts(b"a" * 1024)


@pytest.mark.parametrize(
    ("filters", "why"),
    [
        ("eu-*", "must be a list"),
        (None, "must be a list"),
        ([""], "empty"),
        ([7], "no text"),
        ([b"eu-*"], "no text"),
        (["x" * 201], "201 characters; at most 200"),
        (["x"] * 65, "64 key filters, not 65"),
        (["[ab]*"], r"only \* \(any characters\) and \? \(one character\)"),
        (["{a,b}"], "stand for nothing"),
        (["\ud800"], "Unicode"),
    ],
)
def test_bad_filters_are_refused_with_the_reason(filters: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        check_key_filters(filters, KEY_SHARED)


def test_other_types_have_no_key_filters() -> None:
    assert check_key_filters([], SubscriptionType.SHARED) == ()
    with pytest.raises(InvalidArgument, match="for type 'key-shared', not 'shared'"):
        check_key_filters(["a"], SubscriptionType.SHARED)
