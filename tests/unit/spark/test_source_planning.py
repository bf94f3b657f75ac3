"""Offsets, options and plans of the Spark source: pure functions."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.errors import InvalidArgument, InvalidName
from danubius.spark.source.offsets import EARLIEST, Slot, from_json, incarnations_of, parse, to_json
from danubius.spark.source.options import OPTIONS, read_options
from danubius.spark.source.planning import (
    RANGES_MAX,
    ColdObject,
    Cutting,
    Range,
    limit_bytes,
    limit_offsets,
    plan,
    seams,
    share,
)

_DOCS = Path(__file__).parents[3] / "docs" / "spark.md"
_spans = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), min_size=1, max_size=6)


def _ranges(spans: list[tuple[int, int]], record_bytes: float = 0.0) -> list[Range]:
    return [
        Range("/default/t", number, f"/default/t-part-{number}", begin, begin + size, record_bytes)
        for number, (begin, size) in enumerate(spans)
    ]


@given(_spans, st.integers(0, 50), st.integers(0, 700), st.floats(0, 1e6), st.integers(0, 9))
def test_a_plan_covers_exactly_its_ranges(
    spans: list[tuple[int, int]], least: int, most: int, record_bytes: float, slots: int
) -> None:
    ranges = _ranges(spans, record_bytes)
    pieces = plan(ranges, Cutting(least, most, 10_000.0, slots))
    for range_ in ranges:
        own = [piece for piece in pieces if piece.partition == range_.partition]
        covered = [offset for piece in own for offset in range(piece.begin, piece.end)]
        assert covered == list(range(range_.begin, range_.end))
        assert all(len(piece) > 0 for piece in own)
        assert not most or all(len(piece) <= most for piece in own)
    assert len(pieces) >= min(least, sum(min(1, len(range_)) for range_ in ranges))


def test_long_ranges_get_most_of_the_cuts() -> None:
    pieces = plan(_ranges([(0, 900), (0, 100)]), Cutting(10))
    assert [piece.partition for piece in pieces].count(0) == 8
    assert len(pieces) == 10
    assert len(plan(_ranges([(0, 3)]), Cutting(10))) == 3
    assert len(plan(_ranges([(0, 10**9)]), Cutting(0, 1))) == RANGES_MAX


def test_bytes_cut_as_well() -> None:
    assert len(plan(_ranges([(0, 1000)], 100.0), Cutting(bytes_max=10_000))) == 10


@pytest.mark.parametrize(
    ("mebibytes", "tasks"), [(5, 1), (40, 2), (130, 4), (500, 4), (620, 4), (800, 8), (1100, 8)]
)
def test_tasks_end_together_where_it_is_known_how_many_run_at_once(
    mebibytes: int, tasks: int
) -> None:
    ranges = _ranges([(0, mebibytes * 1024)], 1024.0)
    pieces = plan(ranges, Cutting(slots=4))
    assert len(pieces) == tasks
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    assert len(plan(ranges, Cutting(slots=4, partitions_min=9))) == 9


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_shares_add_up(total: int, weights: list[int]) -> None:
    parts = share(total, weights)
    assert sum(parts) == (total if sum(weights) else 0)
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if not weight)


@given(_spans, st.integers(1, 3000))
def test_a_limit_is_kept_and_something_always_goes_on(
    spans: list[tuple[int, int]], limit: int
) -> None:
    begin = {Slot("/default/t", at): first for at, (first, _) in enumerate(spans)}
    end = {Slot("/default/t", at): first + size for at, (first, size) in enumerate(spans)}
    limited = limit_offsets(begin, end, limit)
    taken = {slot: limited[slot] - begin[slot] for slot in begin}
    waiting = sum(size for _, size in spans)
    assert sum(taken.values()) == min(limit, waiting)
    assert all(0 <= taken[slot] <= end[slot] - begin[slot] for slot in begin)
    by_bytes = limit_bytes(begin, end, limit, dict.fromkeys(begin, 10.0))
    assert all(begin[slot] <= by_bytes[slot] <= end[slot] for slot in begin)
    assert not waiting or any(by_bytes[slot] > begin[slot] for slot in begin)


def test_offsets_are_the_same_text_whatever_their_order() -> None:
    offsets = {Slot("/default/b", 10): 1, Slot("/default/a", 0): 5, Slot("/default/b", 2): 7}
    told = to_json(offsets, {})
    assert str(told) == "{'/default/a': {'0': 5}, '/default/b': {'2': 7, '10': 1}}"
    assert from_json(told, "x") == offsets
    assert incarnations_of(told, "x") == {}


def test_offsets_say_of_which_topics_they_are() -> None:
    first, second, other = Slot("/default/a", 0), Slot("/default/a", 1), Slot("/default/b", 0)
    told = to_json({second: 5, first: 7}, {first: 30, second: 0, other: 40})
    assert (
        str(told) == "{'/default/a': {'0': 7, '1': 5}, 'incarnations': {'/default/a': {'0': 30}}}"
    )
    assert from_json(told, "x") == {first: 7, second: 5}
    assert incarnations_of(told, "x") == {first: 30}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"/default/t": 5}', "not a JSON object"),
        ('{"/default/t": {"a": 5}}', "not the number of a partition"),
        ('{"/default/t": {"0": -3}}', "-2 for earliest"),
        ('{"/default/t": {"0": true}}', "whole number"),
    ],
)
def test_offsets_that_are_wrong(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        parse(text, "startingOffsets")


def test_options_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBIUS_URL", "danube://broker:1234")
    options = read_options(
        {
            "SUBSCRIBE": "b, /other/a",
            "startingoffsets": '{"/default/b": {"0": -2}, "/other/a": {"0": 4}}',
            "maxBytesPerTrigger": "64m",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2 min",
            "failOnDataLoss": "False",
            "reconnectTimeout": "1500ms",
        },
        "stream",
    )
    assert options.url == "danube://broker:1234"
    assert options.topics == ("/default/b", "/other/a")
    assert options.starting is not None
    assert options.starting.per_slot() == {
        Slot("/default/b", 0): EARLIEST,
        Slot("/other/a", 0): 4,
    }
    assert (options.max_bytes_per_trigger, options.max_trigger_delay_s) == (64 << 20, 120.0)
    assert not options.fail_on_data_loss
    assert options.patience.reconnect_s == 1.5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topik": "x"}, "did you mean 'topic'?"),
        ({"topic": "a", "minPartition": "3"}, "did you mean 'minPartitions'?"),
        ({}, "say which topic to read"),
        ({"topic": "a", "subscribePattern": "b"}, "exactly one of the options"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"topic": "a", "startingOffsets": "first"}, "write earliest, latest"),
        ({"topic": "a", "startingOffsets": "earliest", "startingTimestamp": "1"}, "same thing"),
        ({"topic": "a", "startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"topic": "a", "minPartitions": "0"}, "at least 1"),
        ({"topic": "a", "maxBytesPerTrigger": "much"}, "write bytes"),
        ({"topic": "a", "maxTriggerDelay": "5"}, "write a time as"),
        ({"topic": "a", "maxTriggerDelay": "5s"}, "without minOffsetsPerTrigger"),
        ({"topic": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is above"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"topic": "a", "fetchBytes": "1g"}, "64k to 8m"),
        ({"topic": "a", "columns": "key,key"}, "each once"),
        ({"topic": "a", "endingOffsets": "earliest"}, "nothing to read"),
        ({"topic": "a b"}, "option topic"),
        ({"topic": "a", "readForm": "tier"}, "did you mean 'readFrom'?"),
        ({"topic": "a", "readFrom": "teir"}, "auto, broker or tier; did you mean 'tier'?"),
        ({"topic": "a", "tierUrl": "bucket"}, "s3://bucket/prefix"),
        ({"topic": "a", "tierOption": "x"}, "did you mean 'tierOption.NAME'?"),
        ({"topic": "a", "tierOptions.region": "x"}, "did you mean 'tierOption.NAME'?"),
        ({"topic": "a", "readFrom": "broker", "tierUrl": "s3://b"}, "tierUrl says nothing"),
        (
            {"topic": "a", "readFrom": "broker", "tierOption.region": "r"},
            "tierOption.region says nothing",
        ),
    ],
)
def test_options_that_are_wrong(options: dict[str, str], says: str) -> None:
    with pytest.raises((InvalidArgument, InvalidName), match=re.escape(says)):
        read_options(options)


def test_where_objects_are_is_said_by_options_and_else_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DANUBIUS_TIER_URL", "s3://of-all/prefix")
    monkeypatch.setenv("DANUBIUS_TIER_OPTIONS", "region=r, endpoint=http://127.0.0.1:9")
    options = read_options({"topic": "a", "TIEROPTION.Region": "eu", "readfrom": "Tier"})
    assert (options.read_from, options.tier_url) == ("tier", "s3://of-all/prefix")
    assert options.tier_options == {"region": "eu", "endpoint": "http://127.0.0.1:9"}
    assert read_options({"topic": "a", "tierUrl": "fs:///x"}).tier_url == "fs:///x"
    assert read_options({"topic": "a", "readFrom": "broker"}).tier_url == ""
    monkeypatch.setenv("DANUBIUS_TIER_OPTIONS", "region")
    with pytest.raises(InvalidArgument, match="DANUBIUS_TIER_OPTIONS"):
        read_options({"topic": "a"})


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=8),
    st.integers(0, 150),
    st.integers(0, 150),
)
def test_segments_cover_a_range_and_end_where_ledgers_do(
    spans: list[tuple[int, int]], begin: int, end: int
) -> None:
    ledgers: list[ColdObject] = []
    at = 0
    for gap, size in spans:
        ledgers.append(ColdObject(f"object-{at}", at + gap, at + gap + size, 1, 1))
        at += gap + size
    segments = seams(begin, end, ledgers)
    covered = [offset for segment in segments for offset in range(segment.begin, segment.end)]
    assert covered == list(range(begin, end))
    assert all(segment.begin < segment.end for segment in segments)
    for segment in segments:
        holders = [
            ledger for ledger in ledgers if ledger.base < segment.end and ledger.end > segment.begin
        ]
        assert holders == ([] if segment.object is None else [segment.object])
    # What is the broker's comes in one piece.
    assert not any(a.object is b.object is None for a, b in pairwise(segments))


def test_the_docs_name_every_option_and_no_other() -> None:
    table = _DOCS.read_text().partition("## Options for reading")[2].partition("## Offsets")[0]
    lines = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert sorted(named) == sorted(option.name for option in OPTIONS)
    assert "`tierOption.NAME`" in table
