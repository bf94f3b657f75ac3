"""Objects in files: what a crash leaves, and what the folder shows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from danubius.errors import StorageFailed
from danubius.tier.file_objects import FileObjects

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    def __init__(self, wall_us: int) -> None:
        self._wall_us = wall_us

    def monotonic_ns(self) -> int:
        return 0

    def wall_us(self) -> int:
        return self._wall_us


def test_objects_are_plain_files(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path)
    objects.put("a/b/c", [b"hello"])
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"hello"
    assert objects.url == f"fs://{tmp_path}"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_folders_go_with_their_last_object(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path)
    objects.put("a/b/c", [b"1"])
    objects.put("a/d", [b"1"])
    objects.delete("a/b/c")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["d"]
    objects.delete("a/d")
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_is_no_object_and_is_removed_a_day_later(tmp_path: Path) -> None:
    FileObjects(tmp_path).put("a", [b"1"])
    left = tmp_path / ".new-0123456789abcdef"
    left.write_bytes(b"half of it")
    os.utime(left, (1000, 1000))
    assert [info.name for info in FileObjects(tmp_path, clock=Clock(80_000 * 10**6)).list("")] == [
        "a"
    ]
    assert left.exists()
    FileObjects(tmp_path, clock=Clock(90_000 * 10**6))
    assert not left.exists()


def test_a_name_below_an_object_is_refused(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path)
    objects.put("a", [b"1"])
    with pytest.raises(StorageFailed):
        objects.put("a/b", [b"1"])
    assert objects.stat("a/b") is None
    objects.delete("a/b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_folders_that_come_and_go_under_several_writers(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path)

    def work(number: int) -> None:
        for turn in range(20):
            name = f"a/b/{turn % 2}/{number}"
            assert objects.put(name, [b"1"])
            assert objects.get(name, 0, 9) == b"1"
            objects.delete(name)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    assert list(tmp_path.iterdir()) == []
