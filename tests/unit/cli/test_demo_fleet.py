"""The demo's stream: the same every time, and its totals true for any way of reading it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from danubius.cli.demo.fleet import LATE_S, START, WINDOW_S, Fleet, Message, digest_of
from danubius.cli.demo.place import MARK, Place
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path


def _stream(fleet: Fleet) -> list[Message]:
    return [each for tick in fleet.ticks() for each in tick] + fleet.closing()


def _reading(payload: bytes) -> dict[str, object] | None:
    try:
        found = json.loads(payload)
    except ValueError:
        return None
    is_whole = all(found.get(name) is not None for name in ("id", "device", "at", "value"))
    return found if is_whole and isinstance(found["value"], float) else None


def test_a_seed_gives_the_same_stream() -> None:
    first, again, other = Fleet(7, 20, 180), Fleet(7, 20, 180), Fleet(8, 20, 180)
    assert _stream(first) == _stream(again)
    assert first.stragglers() == again.stragglers()
    assert first.published.digest == again.published.digest
    assert _stream(other)
    assert other.published.digest != first.published.digest


def test_what_was_published_is_what_the_books_say() -> None:
    fleet = Fleet(1, 40, 300)
    stream = _stream(fleet) + fleet.stragglers()
    published = fleet.published
    assert published.messages == len(stream)
    assert published.digest == digest_of([message.payload for message in stream])
    readings = [_reading(message.payload) for message in stream]
    spoiled = [m.payload for m, reading in zip(stream, readings, strict=True) if reading is None]
    assert Counter(spoiled) == Counter(published.malformed)
    ids = Counter(reading["id"] for reading in readings if reading is not None)
    assert sum(count - 1 for count in ids.values()) == published.duplicates
    assert len(ids) == published.counted + published.in_open_windows + published.stragglers
    assert published.late > 0 < published.duplicates
    assert published.stragglers > 0


def test_no_reading_that_counts_is_ever_too_late() -> None:
    """Whatever part of the stream a query has read, the next reading of a kind is within its watermark."""
    newest = START
    seen: set[object] = set()
    for message in _stream(Fleet(3, 30, 240)):
        reading = _reading(message.payload)
        if reading is None or reading["id"] in seen:
            continue
        seen.add(reading["id"])
        at = datetime.fromisoformat(str(reading["at"]))
        assert at > newest - timedelta(seconds=LATE_S)
        newest = max(newest, at)


def test_the_end_closes_every_window_and_stragglers_come_after() -> None:
    fleet = Fleet(1, 10, 180)
    _stream(fleet)
    ends = [start + timedelta(seconds=WINDOW_S) for _, start in fleet.published.windows]
    watermark = START + timedelta(seconds=180 + WINDOW_S + LATE_S)
    assert max(ends) <= watermark
    for message in fleet.stragglers():
        reading = _reading(message.payload)
        assert reading is not None
        assert datetime.fromisoformat(str(reading["at"])) < watermark


def test_a_demo_replaces_what_a_demo_left_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with Place(folder) as place:
        (place.folder / "tables").mkdir()
        place.keep()
    assert (folder / "tables").is_dir()
    with Place(folder) as place:
        assert [path.name for path in folder.iterdir()] == [MARK]
        with pytest.raises(InvalidArgument, match="another demo runs in"), Place(folder):
            pass
    assert not folder.exists(), "a demo that does not end leaves nothing"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="files that no demo made"), Place(folder):
        pass
    assert (folder / "thesis.txt").read_text() == "mine"
