"""A sync that nobody waits for: small writes go on beside it, and it vouches only for what came before it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from danubius.errors import StorageFailed
from danubius.sim.disk import SimFiles
from danubius.wal.config import JournalConfig
from danubius.wal.core.format import record_bytes
from danubius.wal.segments import Segments
from danubius.wal.writer import Entry, JournalWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

CONFIG = JournalConfig(file_bytes=64 * 1024, files_max=8, fill_bytes=0)


def entry() -> Entry:
    return Entry(1, 7, (b"body",), 4, record_bytes(4), is_sync=False, generation=1)


def make_writer(files: SimFiles) -> JournalWriter:
    files.mkdir(Path("/j"))
    segments = Segments(CONFIG, files, Path("/j"))
    assert list(segments.recover(0)) == []
    return JournalWriter(CONFIG, segments, 0)


def doing(action: Callable[[], None]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def aside() -> Generator[None]:
        action()
        yield

    return aside


def write_one(writer: JournalWriter) -> None:
    one = entry()
    writer.write([one], one.size)


def test_a_write_beside_the_sync_is_not_taken_for_durable() -> None:
    writer = make_writer(SimFiles())
    write_one(writer)
    before = writer.end
    writer.sync(doing(lambda: write_one(writer)))
    assert writer.durable == before < writer.end
    writer.sync()
    assert writer.durable == writer.end


def test_a_write_that_fails_beside_the_sync_leaves_the_next_group_to_be_synced_first() -> None:
    files = SimFiles()
    writer = make_writer(files)
    write_one(writer)
    before = writer.end

    def fail() -> None:
        files.fail("write")
        with pytest.raises(StorageFailed):
            write_one(writer)

    writer.sync(doing(fail))
    assert writer.durable == writer.end == before
    assert writer.must_sync


def test_a_sync_that_fails_keeps_what_was_written_beside_it() -> None:
    files = SimFiles()
    writer = make_writer(files)
    write_one(writer)

    def write_and_break() -> None:
        write_one(writer)
        files.fail("sync")

    with pytest.raises(StorageFailed):
        writer.sync(doing(write_and_break))
    end = writer.end
    assert writer.durable == 0
    assert writer.must_sync
    writer.sync()  # both are read back and carried over into a new file
    assert writer.durable == writer.end == end
