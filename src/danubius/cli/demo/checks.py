# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pyarrow comes without types)
"""The demo's books: what the tables and topics hold, against what was published. Without Spark, by other readers."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from deltalake import DeltaTable

from danubius.cli.demo.fleet import digest_of
from danubius.cli.demo.report import Check
from danubius.cli.output import human_count

if TYPE_CHECKING:
    from pathlib import Path

    import danubius
    from danubius.cli.demo.fleet import Published, Window

_REASON: Final = "x-failure-reason"
_ORIGIN: Final = "x-original-topic-offset"
_MEASURES: Final = ("readings", "total", "least", "most")

Told = dict[tuple[str, datetime], list[tuple[float, ...]]]
"""What was told of every window; twice if it was told twice."""


async def check_all(
    client: danubius.Client, published: Published, tables: Path, *, output: str, malformed: str
) -> list[Check]:
    """Every total that follows from what was published."""
    in_table = _windows(_rows(tables / "averages"))
    letters = await _read(client, malformed)
    in_topic = _windows(
        [msgspec.json.decode(payload) for payload, _ in await _read(client, output)]
    )
    return [
        _check_archive(published, tables / "archive"),
        _check_letters(published, letters),
        _check_windows("averages", published, in_table),
        _check_windows("topic", published, in_topic),
        _check_sensors(published, in_table),
    ]


def _rows(folder: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    return DeltaTable(str(folder)).to_pyarrow_table(columns=columns).to_pylist()


async def _read(client: danubius.Client, topic: str) -> list[tuple[bytes, dict[str, str]]]:
    found: list[tuple[bytes, dict[str, str]]] = []
    async with client.reader(topic, stop_at_end=True) as reader:
        while batch := await reader.read_batch():
            found += [(message.payload, dict(message.attributes)) for message in batch]
    return found


def _windows(rows: list[dict[str, Any]]) -> Told:
    told: Told = defaultdict(list)
    for row in rows:
        start = row["window_start"]
        start = start if isinstance(start, datetime) else datetime.fromisoformat(start)
        told[row["device"], start].append(tuple(float(row[name]) for name in _MEASURES))
    return told


def _expected(window: Window) -> tuple[float, ...]:
    return (float(window.readings), window.total / 4, window.least / 4, window.most / 4)


def _check_archive(published: Published, folder: Path) -> Check:
    rows = sorted((row["offset"], row["payload"]) for row in _rows(folder, ["offset", "payload"]))
    offsets_fit = [offset for offset, _ in rows] == list(range(published.messages))
    is_held = offsets_fit and digest_of([payload for _, payload in rows]) == published.digest
    files = len(DeltaTable(str(folder)).file_uris()) if rows else 0
    text = (
        f"{human_count(len(rows))} of {human_count(published.messages)} messages in the table, each once,"
        f" byte for byte, in {files} file{'' if files == 1 else 's'}"
    )
    return Check("archive", text, is_held)


def _check_letters(published: Published, letters: list[tuple[bytes, dict[str, str]]]) -> Check:
    same = Counter(payload for payload, _ in letters) == Counter(published.malformed)
    once = len({attributes.get(_ORIGIN) for _, attributes in letters}) == len(letters)
    reasoned = all(attributes.get(_REASON) for _, attributes in letters)
    text = (
        f"{human_count(len(letters))} of {human_count(len(published.malformed))} malformed messages in the"
        " dead letters, each once, with the reason"
    )
    return Check("malformed", text, same and once and reasoned)


def _check_windows(name: str, published: Published, told: Told) -> Check:
    expected = {key: [_expected(window)] for key, window in published.windows.items()}
    right = sum(told.get(key) == value for key, value in expected.items())
    text = (
        f"{human_count(right)} of {human_count(len(expected))} windows with the right count, sum, least and most"
        f" ({human_count(published.late)} late readings counted, {human_count(published.duplicates)} duplicates and"
        f" {human_count(published.stragglers)} too late ones not)"
    )
    return Check(name, text, dict(told) == expected)


def _check_sensors(published: Published, told: Told) -> Check:
    """The same once more from another side: per sensor, over everything."""
    expected: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (device, _), window in published.windows.items():
        expected[device][0] += window.readings
        expected[device][1] += window.total / 4
    for (device, _), values in told.items():
        for readings, total, _, _ in values:
            found[device][0] += readings
            found[device][1] += total
    right = sum(found.get(device) == value for device, value in expected.items())
    readings = sum(int(count) for count, _ in found.values())
    text = (
        f"{right} of {len(expected)} with the right number and sum: {human_count(readings)} readings of"
        f" {human_count(published.messages)} messages; {human_count(published.in_open_windows)} more are in"
        " windows that are still open"
    )
    return Check("sensors", text, dict(found) == dict(expected))
