"""Whoever uses the journal, for tests: on a simulated disk and without threads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from danubius.sim.threads import SimThreads
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal, JournalRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError
    from danubius.sim.disk import SimFiles

DIRECTORY = Path("/data/journal")
CONFIG = JournalConfig(
    file_bytes=16384, files_max=4, group_bytes_max=8192, fill_bytes=0, sync_interval_ms=10
)


class StepClock:
    """Goes on when told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_us(self) -> int:
        return self.now_ns // 1000


class Owner:
    """Whoever uses the journal: appends, turns its worker, hears its reports."""

    def __init__(
        self,
        files: SimFiles,
        from_position: int = 0,
        config: JournalConfig = CONFIG,
        keep_from: int | None = None,
    ) -> None:
        self.files = files
        self.threads = SimThreads()
        self.clock = StepClock()
        self.step_ns = 1_000_000_000
        """How long before a turn: by default no pause after failures matters."""
        self.journal = Journal(config, files, DIRECTORY, spawn=self.threads, clock=self.clock)
        self.recovered: list[JournalRecord] = list(
            self.journal.recover(from_position, keep_from=keep_from)
        )
        self.posts: list[Callable[[], None]] = []
        self.committed: list[object] = []
        self.failed: list[tuple[list[object], DanubiusError]] = []
        self.journal.start(self.posts.append, self.on_committed, self.on_failed)
        self.threads.turn()

    def on_committed(self, tokens: list[object], end: int) -> None:
        self.committed += tokens
        assert end == self.journal.end_position

    def on_failed(self, tokens: list[object], error: DanubiusError) -> None:
        self.failed.append((tokens, error))

    def append(self, token: str, *, size: int = 100, sync: bool = True) -> None:
        body = token.encode().ljust(size, b".")
        self.journal.append(1, 7, body, token, sync=sync)

    def turn(self, now_ns: int = 0) -> None:
        self.clock.now_ns += self.step_ns
        self.threads.turn(now_ns)
        while self.posts:
            self.posts.pop(0)()

    def commit(self, *tokens: str, size: int = 100, sync: bool = True) -> None:
        for token in tokens:
            self.append(token, size=size, sync=sync)
        self.turn()
        assert self.committed[-len(tokens) :] == list(tokens)

    @property
    def bodies(self) -> list[str]:
        return [bytes(record.body).decode().rstrip(".") for record in self.recovered]


def reopen(files: SimFiles, from_position: int = 0) -> Owner:
    return Owner(files, from_position)


def last_file(files: SimFiles) -> Path:
    """The file with the highest number that has been written to."""
    names = [n for n in files.listdir(DIRECTORY) if files.read_bytes(DIRECTORY / n)[:4] == b"DNJF"]
    return DIRECTORY / names[-1]


def journal_files(files: SimFiles) -> list[str]:
    """Names of files that hold records or wait to: all but the mark."""
    return [name for name in files.listdir(DIRECTORY) if name.endswith(".journal")]
