"""The journal as it runs: a real thread, a real disk, a real kill -9."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DanubiusError, StorageFailed
from danubius.runtime.files import LocalFiles
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.writer import JournalWriter

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = JournalConfig(file_bytes=1024 * 1024, files_max=8, fill_bytes=64 * 1024)


def open_journal(directory: Path) -> tuple[Journal, list[bytes]]:
    journal = Journal(CONFIG, LocalFiles(), directory)
    return journal, [bytes(record.body) for record in journal.recover(0)]


def start(journal: Journal) -> None:
    def on_committed(tokens: list[object], end: int) -> None:
        for token in tokens:
            assert isinstance(token, asyncio.Future)
            token.set_result(end)

    def on_failed(tokens: list[object], error: DanubiusError) -> None:
        for token in tokens:
            assert isinstance(token, asyncio.Future)
            token.set_exception(error)

    journal.start(asyncio.get_running_loop().call_soon_threadsafe, on_committed, on_failed)


async def test_records_of_a_running_journal_are_recovered(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path / "j")
    start(journal)
    bodies = [os.urandom(number % 977) for number in range(3000)]
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[int]] = []
    for number, body in enumerate(bodies):
        futures.append(loop.create_future())
        journal.append(1, number, body, futures[-1], sync=number % 3 == 0)
        if number % 500 == 0:
            await futures[-1]
    await futures[-1]
    journal.close()
    ends = [future.result() for future in futures]
    assert ends == sorted(ends)
    assert journal.counters.groups < journal.counters.records == 3000
    assert open_journal(tmp_path / "j")[1] == bodies


async def test_a_bug_in_the_thread_fails_what_waits_and_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = open_journal(tmp_path / "j")
    start(journal)

    def write(writer: JournalWriter, entries: list[object]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(JournalWriter, "write", write)
    loop = asyncio.get_running_loop()
    for _ in range(2):
        future: asyncio.Future[int] = loop.create_future()
        journal.append(1, 1, b"x", future, sync=True)
        with pytest.raises(StorageFailed, match="internal error"):
            await future
    journal.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from danubius.runtime.files import LocalFiles
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal

async def main():
    config = JournalConfig(file_bytes=256 * 1024, files_max=64, fill_bytes=64 * 1024)
    journal = Journal(config, LocalFiles(), Path(sys.argv[1]))
    number = sum(1 for _ in journal.recover(0))
    done = asyncio.Event()
    def on_committed(tokens, end):
        sys.stdout.write("".join(f"{t}\\n" for t in tokens)); sys.stdout.flush(); done.set()
    journal.start(asyncio.get_running_loop().call_soon_threadsafe, on_committed, print)
    while True:
        for _ in range(7):
            journal.append(1, number, f"{number:08d}".encode() * (number % 300), number, sync=number % 2 == 0)
            number += 1
        done.clear()
        await done.wait()
asyncio.run(main())
"""


def test_nothing_reported_is_lost_by_kill_9(tmp_path: Path) -> None:
    directory = tmp_path / "j"
    reported = -1
    for round_number in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with process:
            assert process.stdout is not None
            line = b""
            for _ in range(20 + 97 * round_number):
                line = process.stdout.readline()
                assert line, "the writer ended by itself"
            process.kill()
            rest = [line, *process.stdout.readlines()]
        # The pipe's last line may be cut in the middle of a number.
        reported = max(reported, *(int(text) for text in rest if text.endswith(b"\n")))
        bodies = open_journal(directory)[1]
        assert bodies == [f"{n:08d}".encode() * (n % 300) for n in range(len(bodies))]
        assert len(bodies) > reported
