"""The status of a running pipeline, in a small file beside its checkpoint, and who holds the checkpoint.

The file is replaced as a whole, so a reader never sees half of it. A lock that ends with its process keeps a second run
away from the same checkpoint.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from danubius.errors import InvalidArgument
from danubius.pipeline.progress import Figures

if TYPE_CHECKING:
    from typing import IO

FILE: Final = "danubius-status.json"
LOCK: Final = "danubius.lock"


class QueryStatus(msgspec.Struct, frozen=True):
    """One query of the run."""

    state: str
    restarts: int = 0
    reason: str = ""
    """Of the newest failure."""
    figures: Figures = Figures()


class Status(msgspec.Struct, frozen=True):
    """One run."""

    pipeline: str
    file: str
    pid: int
    state: Literal["running", "stopping", "finished", "failed"]
    started: str
    updated: str
    metrics_port: int | None
    queries: dict[str, QueryStatus]


def folder_of(checkpoint: str) -> Path | None:
    """Where the status lies; None if the checkpoint is not on a file system of this machine."""
    if "://" in checkpoint and not checkpoint.startswith("file://"):
        return None
    return Path(checkpoint.removeprefix("file://")).absolute()


def write(folder: Path, status: Status) -> None:
    new = folder / (FILE + ".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(status)))
    new.replace(folder / FILE)


def read(folder: Path) -> Status | None:
    """The newest status; None if nothing ever ran here."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Status)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as problem:
        raise InvalidArgument(f"{folder / FILE} is not a status: {problem}") from problem


def is_held(folder: Path) -> bool:
    """Whether a process runs on this checkpoint now."""
    try:
        with (folder / LOCK).open("rb") as file:
            return not _try_lock(file)
    except FileNotFoundError:
        return False


def hold(folder: Path) -> IO[bytes]:
    """Take the checkpoint until the file is closed or the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("ab+")
    if not _try_lock(file):
        file.seek(0)
        pid = file.read(20).decode(errors="replace").strip()
        file.close()
        raise InvalidArgument(
            f"the checkpoint {folder} is in use by process {pid}: stop that one, or give another --checkpoint"
        )
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
