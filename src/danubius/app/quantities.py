"""Sizes and times as people write them: `64MiB`, `10s`. A plain number is in the unit of its setting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER: Final = re.compile(r"(-?[0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_DIGITS_MAX: Final = 19
"""Enough for 64 bits; bounds what is worked out for a careless hand."""

COUNT: Final[Mapping[str, int]] = {"": 1}
MILLISECONDS: Final[Mapping[str, int]] = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
BYTES: Final[Mapping[str, int]] = {"": 1, "B": 1} | {
    f"{letter}{suffix}": factor**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, factor in (("", 1024), ("iB", 1024), ("B", 1000))
}


def units_of(name: str) -> Mapping[str, int]:
    """The units that a setting of this name takes: its name says what it counts."""
    if name.endswith("_ms"):
        return MILLISECONDS
    return BYTES if "bytes" in name else COUNT


def parse_quantity(text: str, units: Mapping[str, int]) -> int | None:
    """The number that is meant, or None if none is."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units or len(match[1]) > _DIGITS_MAX:
        return None
    value = float(match[1].replace("_", "")) if "." in match[1] else int(match[1].replace("_", ""))
    result = value * units[match[2]]
    return int(result) if result == int(result) else None
