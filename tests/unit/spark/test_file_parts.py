"""Parts of a broker's files: read where they lie, and only if everything about them is as the broker said."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from danubius.model.file_part import FilePart
from danubius.record.checksum import crc32c
from danubius.runtime.files import LocalFiles
from danubius.spark.connection import file_parts
from danubius.spark.connection.file_parts import FAILURES_MAX, OPEN_MAX, FileParts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCKS = [os.urandom(300_000), b"small", os.urandom(4096)]
BEFORE = b"what comes before"


@pytest.fixture
def parts() -> Iterator[FileParts]:
    opened = FileParts()
    yield opened
    opened.close()


def part_of(path: Path, blocks: list[bytes] = BLOCKS) -> FilePart:
    path.write_bytes(b"".join([BEFORE, *blocks, b"and behind"]))
    identity = LocalFiles().identify(path)
    assert identity is not None
    sums = [(len(block), crc32c(block)) for block in blocks]
    return FilePart(str(path), *identity, len(BEFORE), sums)


def test_the_blocks_of_a_part_come_as_they_lie(parts: FileParts, tmp_path: Path) -> None:
    part = part_of(tmp_path / "a")
    assert part.size == sum(map(len, BLOCKS))
    assert parts.read(part) == b"".join(BLOCKS)


@pytest.mark.parametrize(
    "wrong",
    [{"inode": 1}, {"device": 1}, {"position": 3}, {"position": 10**6}, {"path": "/none/such"}],
    ids=str,
)
def test_another_file_or_other_bytes_are_never_handed_out(
    parts: FileParts, tmp_path: Path, wrong: dict[str, object]
) -> None:
    part = part_of(tmp_path / "a")
    assert parts.read(msgspec.structs.replace(part, **wrong)) is None
    assert parts.is_worth_asking, "one failure says nothing about the next"
    assert parts.read(part) is not None


def test_a_block_that_changed_is_not_handed_out(parts: FileParts, tmp_path: Path) -> None:
    path = tmp_path / "a"
    part = part_of(path)
    with path.open("r+b") as file:
        file.seek(len(BEFORE) + 300_001)
        file.write(b"?")
    assert parts.read(part) is None


def test_a_file_that_was_removed_can_still_be_read_by_who_has_it_open(
    parts: FileParts, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    part = part_of(path)
    assert parts.read(part) is not None
    path.unlink()
    assert parts.read(part) == b"".join(BLOCKS)
    assert FileParts().read(part) is None


def test_after_failures_in_a_row_nobody_asks_again(parts: FileParts, tmp_path: Path) -> None:
    part = part_of(tmp_path / "a")
    for _ in range(FAILURES_MAX):
        assert parts.is_worth_asking
        parts.read(msgspec.structs.replace(part, inode=1))
    assert not parts.is_worth_asking


def test_another_machine_is_enough_to_know(
    parts: FileParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = part_of(tmp_path / "a")
    monkeypatch.setattr(file_parts, "running_machine", lambda: "another")
    assert parts.read(part) is None
    assert not parts.is_worth_asking


def test_few_files_stay_open(parts: FileParts, tmp_path: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = opened()
    for number in range(3 * OPEN_MAX):
        assert parts.read(part_of(tmp_path / str(number), [b"x"])) == b"x"
    assert opened() - before <= OPEN_MAX
    parts.close()
    assert opened() <= before
