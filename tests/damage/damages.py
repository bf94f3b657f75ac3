"""Which files there are, told by what they are for, and what may happen to each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.record.ledger_file import CONTINUED_MAGIC, LEDGER_MAGIC
from danubius.tier.core.journal_object import parse_header
from danubius.wal.core.format import parse_file_header
from danubius.wal.core.recovery import plan_spans

if TYPE_CHECKING:
    from damage.templates import Template
    from damage.worlds import Image

Names = list[str]
Select = Callable[["Image"], Names]
GARBAGE_BYTES: Final = 64


class Target(NamedTuple):
    """One row: the files of a kind of store that have the same part in it."""

    label: str
    select: Select
    """Their names, in an image."""
    folder: str = ""
    """If all of a folder is meant: its name, which may be left when its files are gone."""


# ---------------------------------------------------------------- what happens to files


def missing(template: Template, target: Target) -> Image:
    gone = set(target.select(template.image))
    return {name: data for name, data in template.image.items() if name not in gone}


def empty(template: Template, target: Target) -> Image:
    """Files of no bytes; a folder without files, as where nothing is mounted."""
    if target.folder and not target.folder.startswith("objects/"):
        return missing(template, target) | {target.folder: b""}
    return template.image | dict.fromkeys(target.select(template.image), b"")


def truncated(template: Template, target: Target) -> Image:
    return _changed(template, target, lambda data: data[: len(data) // 2])


def older(template: Template, target: Target) -> Image:
    """As it was when a copy was made: minutes ago, or before the last start."""
    if target.folder:
        return _replaced(template, target, template.older)
    found: Image = {}
    for number, name in enumerate(target.select(template.image)):
        now = template.image[name]
        copies = [template.earlier.get(name), template.older.get(name)]
        others = target.select(template.older)
        copies.append(template.older[others[min(number, len(others) - 1)]] if others else None)
        found[name] = next((one for one in copies if one is not None and one != now), now)
    return template.image | found


def foreign(template: Template, target: Target) -> Image:
    """Of another broker."""
    if target.folder:
        return _replaced(template, target, template.other)
    others = target.select(template.other)
    found: Image = {}
    for number, name in enumerate(target.select(template.image)):
        if others:
            found[name] = template.other[others[min(number, len(others) - 1)]]
    return template.image | found


def garbage_inside(template: Template, target: Target) -> Image:
    def change(data: bytes) -> bytes:
        at = max(0, len(data) // 2 - GARBAGE_BYTES // 2)
        noise = _noise(min(GARBAGE_BYTES, len(data) - at), data)
        return data[:at] + noise + data[at + len(noise) :]

    return _changed(template, target, change)


def garbage_at_end(template: Template, target: Target) -> Image:
    def change(data: bytes) -> bytes:
        noise = _noise(min(GARBAGE_BYTES, len(data)), data)
        return data[: len(data) - len(noise)] + noise

    return _changed(template, target, change)


def garbage_behind(template: Template, target: Target) -> Image:
    return _changed(template, target, lambda data: data + _noise(1000, data))


DAMAGES: Final[dict[str, Callable[[Template, Target], Image]]] = {
    "missing": missing,
    "empty": empty,
    "cut in half": truncated,
    "an older copy": older,
    "another broker's": foreign,
    "garbage inside": garbage_inside,
    "garbage at the end": garbage_at_end,
    "garbage behind it": garbage_behind,
}


def _changed(template: Template, target: Target, change: Callable[[bytes], bytes]) -> Image:
    image = template.image
    return image | {name: change(image[name]) for name in target.select(image)}


def _replaced(template: Template, target: Target, source: Image) -> Image:
    return missing(template, target) | {name: source[name] for name in target.select(source)}


def _noise(count: int, data: bytes) -> bytes:
    return random.Random(len(data)).randbytes(count)


# ---------------------------------------------------------------- which files there are


def named(prefix: str, suffix: str = "") -> Select:
    """All below a prefix, `*` in which is the name of one folder, whichever."""
    head, star, tail = prefix.partition("*")

    def matches(name: str) -> bool:
        if not name.startswith(head) or not name.endswith(suffix):
            return False
        return not star or name[len(head) :].partition("/")[2].startswith(tail.removeprefix("/"))

    return lambda image: sorted(name for name in image if matches(name))


def nth(select: Select, number: int) -> Select:
    """One of them."""
    return lambda image: found[number : number + 1 or None] if (found := select(image)) else []


def journal(role: str) -> Select:
    """Journal files by what a start needs them for."""

    def select(image: Image) -> Names:
        names = named("data/journal/", ".journal")(image)
        headers = {name: parse_file_header(image[name]) for name in names}
        by_sequence = {
            header.sequence: name
            for name, header in headers.items()
            if header is not None and header.sequence == int(name[-18:-8])
        }
        positions = [int(name[-29:-9]) for name in named("data/snapshots/", ".snapshot")(image)]
        live = [header for name in by_sequence.values() if (header := headers[name]) is not None]
        kept = [
            by_sequence[span.header.sequence]
            for span in plan_spans(live, min(positions, default=0))
        ]
        read = [
            by_sequence[span.header.sequence]
            for span in plan_spans(live, max(positions, default=0))
        ]
        match role:
            case "older":
                return [name for name in kept if name not in read][:1]
            case "first":
                return read[:1]
            case "middle":
                return read[1:-1][:1]
            case "newest":
                return read[-1:]
            case _:
                return [name for name in names if name not in kept]

    return select


def slots(role: str) -> Select:
    """Objects of a journal without a disk."""

    def select(image: Image) -> Names:
        names = named("objects/diskless/journal/")(image)
        headers = {name: parse_header(image[name], int(name[-16:], 16)) for name in names}
        fences = [name for name, header in headers.items() if header is None or header.is_fence]
        filled = [name for name in names if name not in fences]
        position = max(int(name[-29:-9]) for name in named("objects/diskless/snapshots/")(image))
        read = [
            name
            for name in filled
            if (header := headers[name]) is not None and header.end > position
        ]
        match role:
            case "first":
                return read[:1]
            case "middle":
                return read[len(read) // 2 :][:1]
            case "newest":
                return read[-1:]
            case _:
                return fences[-1:]

    return select


def own_ledgers(prefix: str) -> Select:
    """Ledgers in files of their own."""

    def select(image: Image) -> Names:
        return [
            name
            for name in named(prefix, ".ledger")(image)
            if image[name][:4] in (LEDGER_MAGIC, CONTINUED_MAGIC)
        ]

    return select
