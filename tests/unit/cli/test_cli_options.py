"""What may be written for an option of the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from danubius.cli import options


def test_a_url_may_name_several_brokers() -> None:
    assert options.broker_url("danube://a:6651,b:6651") == "danube://a:6651,b:6651"
    with pytest.raises(click.BadParameter, match="a comma without a host"):
        options.broker_url("danube://a:6651,")


@pytest.mark.parametrize(
    ("text", "number"),
    [("500", 500), ("10k", 10_000), ("1M", 1_000_000), ("1_000", 1000), ("2.5k", 2500)],
)
def test_counts_have_units(text: str, number: int) -> None:
    assert options.count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100", 100),
        ("100B", 100),
        ("64KiB", 65536),
        ("64K", 65536),
        ("1MB", 1_000_000),
        ("5G", 5 * 2**30),
    ],
)
def test_bytes_have_units(text: str, number: int) -> None:
    assert options.byte_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("90", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800)]
)
def test_ages_have_units(text: str, number: int) -> None:
    assert options.seconds(text) == number


@pytest.mark.parametrize("text", ["", "k", "-1", "1.", "12parsecs", "1 000", "1e3", "٣"])
def test_other_quantities_are_refused(text: str) -> None:
    for parse in (options.count, options.byte_count, options.seconds):
        with pytest.raises(click.BadParameter):
            parse(text)


def test_a_start_is_a_word_an_offset_or_a_time() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert options.start_position("earliest") == "earliest"
    assert options.start_position("latest") == "latest"
    assert options.start_position("17") == 17
    assert options.start_position("2026-01-31T12:00:00") == noon
    assert options.start_position("2026-01-31T12:00:00Z") == noon
    vienna = timezone(timedelta(hours=1))
    assert options.start_position("2026-01-31T13:00:00+01:00") == noon.astimezone(vienna)


@pytest.mark.parametrize("text", [str(2**63), "9" * 5000])
def test_offsets_beyond_any_topic_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="offset"):
        options.start_position(text)


def test_a_number_too_large_to_be_one_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="too large"):
        options.count("9" * 400)


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "2026-13-01"])
def test_other_starts_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither"):
        options.start_position(text)


def test_a_pair_may_hold_equal_signs_in_its_value() -> None:
    assert options.name_and_value("a=b=c") == ("a", "b=c")
    assert options.name_and_value("a=") == ("a", "")


@pytest.mark.parametrize("text", ["", "a", "=b"])
def test_other_pairs_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        options.name_and_value(text)


def test_a_wrong_topic_name_is_wrong_usage() -> None:
    with pytest.raises(click.BadParameter, match="/namespace/topic"):
        options.topic_name("orders")
