"""Finding and damaging what a stopped broker left on the disk, by content instead of by knowledge of its names."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

BATCH_MAGIC: Final = b"DNRB"


@dataclass
class Place:
    """Where a stored batch lies."""

    path: Path
    start: int
    end: int
    marker: int
    """Position of the searched bytes inside the file."""


def find_batches(data_dir: Path, marker: bytes) -> list[Place]:
    """Every stored batch whose bytes contain the marker."""
    places: list[Place] = []
    for path in sorted(data_dir.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        at = content.find(marker)
        while at >= 0:
            start = content.rfind(BATCH_MAGIC, 0, at)
            assert start >= 0, f"{path} holds the payload outside a batch"
            (length,) = struct.unpack_from("<I", content, start + 4)
            if start + length >= at + len(marker):
                places.append(Place(path, start, start + length, at))
            at = content.find(marker, at + 1)
    return places


def size_of(path: Path) -> int:
    """Of a file that a running broker may delete at any time; 0 if it did."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def flip(path: Path, position: int) -> None:
    """Change one bit."""
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
