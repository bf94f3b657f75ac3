"""Zeros before the pen: for small groups, which sync often, and not where large ones would write over them at once."""

from __future__ import annotations

from pathlib import Path

from danubius.model.limits import KIB
from danubius.sim.disk import SimFiles
from danubius.wal.config import JournalConfig
from danubius.wal.core.format import record_bytes
from danubius.wal.segments import Segments
from danubius.wal.writer import Entry, JournalWriter

FILL = 64 * KIB
CONFIG = JournalConfig(file_bytes=1024 * KIB, files_max=8, fill_bytes=FILL)
LARGE = 4 * KIB


class Journal:
    """A writer, and how far its file reaches."""

    def __init__(self) -> None:
        self._files = SimFiles()
        self._files.mkdir(Path("/j"))
        segments = Segments(CONFIG, self._files, Path("/j"))
        assert list(segments.recover(0)) == []
        self.writer = JournalWriter(CONFIG, segments, 0)

    def write(self, size: int, times: int = 1) -> None:
        for _ in range(times):
            body = bytes(size)
            one = Entry(1, 7, (body,), size, record_bytes(size), is_sync=False, generation=1)
            self.writer.write([one], one.size)

    @property
    def ahead(self) -> int:
        """What the file holds behind the last record."""
        (name,) = self._files.listdir(Path("/j"))
        size = self._files.open(Path("/j") / name).size()
        return size - len(self._files.read_bytes(Path("/j") / name).rstrip(b"\0"))


def test_small_groups_find_zeros_before_them() -> None:
    journal = Journal()
    journal.write(10)
    assert journal.ahead >= FILL


def test_large_groups_get_none_though_small_ones_are_between_them() -> None:
    journal = Journal()
    for _ in range(50):
        journal.write(LARGE)
        journal.write(10, times=3)
    assert journal.ahead < LARGE
    assert journal.writer.is_quick(100), "a small write beside them may still be done at once"


def test_when_only_small_groups_are_left_they_find_zeros_again() -> None:
    journal = Journal()
    journal.write(LARGE, times=30)
    journal.write(10, times=100)
    assert journal.ahead >= FILL // 2
