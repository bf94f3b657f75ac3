"""A disk in memory that behaves like the worst honest one: the twin of `runtime.files`.

What it promises and what it does not:
- Content is durable after `datasync` of the file, names after `sync_dir` (or `sync_all`, or `write_atomic`). Without
  that, `crash` keeps any part of it: whole writes, prefixes of them, single sectors, in any mix; of a directory's
  changes any prefix.
- The same with `pwritev_synced`, for what it wrote and nothing else of the file.
- A write that fails or meets the power loss is done up to some sector.
- A failed `datasync` loses sectors for good while reads still show them, and the next one succeeds.
- Everything that is left to chance comes from the seed. Sectors of 512 bytes are atomic. Hints change nothing. Files
  opened before a crash are dead behind it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from danubius.errors import DanubiusError, DataDirectoryInUse, StorageFailed, StorageFull
from danubius.runtime.files import TEMPORARY_SUFFIX
from danubius.sim.inode import Inode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from danubius.model.buffers import Buffer


class PowerLost(BaseException):
    """The machine is off. No code under test may catch it: that code no longer runs."""


class SimFiles:
    """The file system of a simulated disk."""

    def __init__(self, *, seed: int = 0, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """All files together; None for endless. May be changed at any time."""
        self.counts: Counter[str] = Counter()
        """Operations done or tried: open, write, read, sync, truncate, rename, remove, mkdir, …"""
        self.on_power_loss: Callable[[], None] | None = None
        """Called when the power fails by itself, before whoever was at work hears of it."""
        self._random = random.Random(seed)
        self._mutex = threading.RLock()
        """Guards everything: threads of one broker share its disk."""
        self._names: dict[Path, Inode] = {}
        self._directories: set[Path] = set()
        self._durable_names: dict[Path, Inode] = {}
        self._durable_directories: set[Path] = set()
        self._name_changes: list[_NameChange] = []
        self._locks: set[Path] = set()
        self._faults: list[_Fault] = []
        self._steps_left: int | None = None
        self._is_off = False
        self._boot = 0

    # ------------------------------------------------------------ what tests do to a disk

    def fail(
        self,
        operation: str,
        *,
        after: int = 0,
        times: int = 1,
        error: type[DanubiusError] = StorageFailed,
    ) -> None:
        """Let an operation fail `times` times, after it was done `after` times more."""
        with self._mutex:
            self._faults.append(_Fault(operation, after, times, error))

    def heal(self) -> None:
        """Forget all faults that were to come."""
        with self._mutex:
            self._faults.clear()
            self._steps_left = None

    def lose_power_after(self, steps: int) -> None:
        """Let the operation after `steps` more changes be the one in which the power fails."""
        with self._mutex:
            self._steps_left = steps

    def crash(self, seed: int | None = None) -> None:
        """Power loss and reboot: what was not synced survives in part, or not at all."""
        with self._mutex:
            if seed is not None:
                self._random.seed(seed)
            self._settle_names()
            # In the order of names, so that one seed gives one disk.
            for inode in dict.fromkeys(self._names[path] for path in sorted(self._names)):
                inode.crash(self._random)
            self._reboot()

    def kill(self) -> None:
        """The process dies (kill -9), the machine lives: everything written stays."""
        with self._mutex:
            self._reboot()

    def rot(self, path: Path, at: int, count: int = 1) -> None:
        """Damage bytes that were durable, as time does."""
        with self._mutex:
            inode = self._names[path]
            for content in (inode.content, inode.durable):
                for index in range(at, min(at + count, len(content))):
                    content[index] ^= 0xFF

    def contents(self) -> dict[Path, bytes]:
        """Every file as it reads now: what is left if the process is killed in this moment."""
        with self._mutex:
            return {path: bytes(inode.content) for path, inode in sorted(self._names.items())}

    def lay_out(self, contents: Mapping[Path, bytes]) -> None:
        """Put files there, durably, with the directories that they lie in."""
        with self._mutex:
            for path, data in contents.items():
                self.mkdir(path.parent)
                file = self.open(path, create=True)
                file.truncate(0)
                file.pwritev([data], 0)
                file.close()
            self.sync_all(Path("/"))

    def used_bytes(self) -> int:
        with self._mutex:
            return sum(len(inode.content) for inode in set(self._names.values()))

    # ------------------------------------------------------------ the port

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> SimFile:
        with self._mutex:
            self.step("open", changes=create and path not in self._names)
            inode = self._names.get(path)
            if inode is None:
                if not create:
                    raise StorageFailed(f"cannot open {path}: No such file or directory")
                self._need_directory(path.parent)
                inode = Inode()
                self._change_names(path.parent, {path: inode})
            return SimFile(self, path, inode, self._boot, is_writable=write)

    def exists(self, path: Path) -> bool:
        with self._mutex:
            self.step("exists")
            return path in self._names or path in self._directories

    def listdir(self, path: Path) -> list[str]:
        with self._mutex:
            self.step("listdir")
            return sorted(p.name for p in (*self._names, *self._directories) if p.parent == path)

    def mkdir(self, path: Path, *, sync: bool = False) -> None:
        with self._mutex:
            absent = [p for p in (path, *path.parents) if not self._is_directory(p)]
            for level in reversed(absent):
                self.step("mkdir", changes=True)
                self._directories.add(level)
                self._name_changes.append(_NameChange(level.parent, {}, level))
            if sync:
                for level in absent:
                    self.sync_dir(level.parent)

    def remove(self, path: Path) -> None:
        with self._mutex:
            self.step("remove", changes=True)
            if path in self._names:
                self._change_names(path.parent, {path: None})

    def rmtree(self, path: Path) -> None:
        with self._mutex:
            for name in [name for name in self._names if path in name.parents]:
                self.remove(name)
            for level in [d for d in self._directories if d == path or path in d.parents]:
                self._directories.discard(level)
                self._durable_directories.discard(level)

    def rename(self, source: Path, target: Path) -> None:
        with self._mutex:
            self.step("rename", changes=True)
            if source not in self._names:
                raise StorageFailed(f"cannot rename {source}: No such file or directory")
            self._need_directory(target.parent)
            self._change_names(target.parent, {target: self._names[source], source: None})

    def sync_dir(self, path: Path) -> None:
        with self._mutex:
            self.step("sync_dir", changes=True)
            self._settle_directory(path)

    def sync_all(self, path: Path) -> None:  # noqa: ARG002  there is one file system here
        with self._mutex:
            self.step("sync_all", changes=True)
            for change in self._name_changes:
                self._make_durable(change)
            self._name_changes.clear()
            for inode in set(self._names.values()):
                inode.sync()

    def identify(self, path: Path) -> None:  # noqa: ARG002
        """Nobody else can open what is simulated."""
        return

    def free_bytes(self, path: Path) -> int:  # noqa: ARG002  there is one file system here
        with self._mutex:
            if self.capacity_bytes is None:
                return 2**62
            return max(0, self.capacity_bytes - self.used_bytes())

    def write_atomic(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            file = self.open(temporary, create=True)
            file.truncate(0)
            file.pwritev([data], 0)
            file.datasync()
            file.close()
            self.rename(temporary, path)
        except DanubiusError:
            self.remove(temporary)
            raise
        self.sync_dir(path.parent)

    def read_bytes(self, path: Path) -> bytes:
        file = self.open(path, write=False)
        return file.pread(file.size(), 0)

    def lock(self, path: Path) -> SimLock:
        with self._mutex:
            self.step("lock")
            self._need_directory(path.parent)
            if path in self._locks:
                raise DataDirectoryInUse(f"{path.parent} is in use by another broker")
            self._locks.add(path)
            return SimLock(self._locks, path)

    # ------------------------------------------------------------ for SimFile

    @property
    def mutex(self) -> threading.RLock:
        return self._mutex

    def check_alive(self, boot: int) -> None:
        if self._is_off or boot != self._boot:
            raise PowerLost

    def step(
        self, operation: str, *, changes: bool = False, cut: Callable[[float], None] | None = None
    ) -> None:
        """Count an operation; let it fail or meet the power loss if that is due.

        `cut` does the given part of it: what a failing write leaves behind.
        """
        if self._is_off:
            raise PowerLost
        self.counts[operation] += 1
        if changes and self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._is_off = True
                if cut is not None:
                    cut(self._random.random())
                if self.on_power_loss is not None:
                    self.on_power_loss()
                raise PowerLost
        for fault in self._faults:
            if fault.strikes(operation):
                if cut is not None:
                    cut(self._random.choice([0.0, self._random.random(), 1.0]))
                raise fault.error(f"cannot {operation}: injected fault")

    def lose_pages(self, inode: Inode) -> None:
        inode.fail_sync(self._random)

    # ------------------------------------------------------------ names

    def _is_directory(self, path: Path) -> bool:
        return path in self._directories or path in (Path("/"), Path())

    def _need_directory(self, path: Path) -> None:
        if not self._is_directory(path):
            raise StorageFailed(f"cannot use {path}: No such directory")

    def _change_names(self, directory: Path, names: dict[Path, Inode | None]) -> None:
        _apply_names(self._names, names)
        self._name_changes.append(_NameChange(directory, names, None))

    def _settle_directory(self, path: Path) -> None:
        for change in self._name_changes:
            if change.directory == path:
                self._make_durable(change)
        self._name_changes = [c for c in self._name_changes if c.directory != path]

    def _make_durable(self, change: _NameChange) -> None:
        _apply_names(self._durable_names, change.names)
        if change.made is not None:
            self._durable_directories.add(change.made)

    def _settle_names(self) -> None:
        """Of every directory's unsynced changes, a random number of the first ones survives."""
        pending = Counter(change.directory for change in self._name_changes)
        kept = {d: self._random.randint(0, pending[d]) for d in sorted(pending)}
        for change in self._name_changes:
            if kept[change.directory] > 0:
                kept[change.directory] -= 1
                self._make_durable(change)
        self._name_changes.clear()
        whole = {d for d in self._durable_directories if self._is_rooted(d)}
        self._directories = whole
        self._durable_directories = set(whole)
        self._durable_names = {
            path: inode
            for path, inode in self._durable_names.items()
            if self._is_rooted(path.parent)
        }
        self._names = dict(self._durable_names)

    def _is_rooted(self, directory: Path) -> bool:
        levels = [d for d in (directory, *directory.parents) if d not in (Path("/"), Path())]
        return all(level in self._durable_directories for level in levels)

    def _reboot(self) -> None:
        self._boot += 1
        self._is_off = False
        self._locks.clear()
        self._faults.clear()
        self._steps_left = None


class SimFile:
    """An open file of a simulated disk."""

    def __init__(
        self, files: SimFiles, path: Path, inode: Inode, boot: int, *, is_writable: bool
    ) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._boot = boot
        self._is_writable = is_writable
        self._is_closed = False

    @property
    def path(self) -> Path:
        return self._path

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        data = b"".join(buffers)
        with self._files.mutex:
            self._check(writes=True)
            self._files.step("write", changes=True, cut=lambda part: self._cut(data, at, part))
            capacity = self._files.capacity_bytes
            growth = max(0, at + len(data) - len(self._inode.content))
            if capacity is not None and growth and self._files.used_bytes() + growth > capacity:
                room = max(0, capacity - self._files.used_bytes())
                self._inode.write(data[: max(0, len(data) - growth + room)], at)
                raise StorageFull(f"cannot write to {self._path}: No space left on device")
            self._inode.write(data, at)

    def pwritev_synced(self, buffers: Sequence[Buffer], at: int) -> None:
        with self._files.mutex:
            self.pwritev(buffers, at)
            lose = self._files.lose_pages
            self._files.step("sync", changes=True, cut=lambda _: lose(self._inode))
            self._inode.sync_last()

    def pread(self, count: int, at: int) -> bytes:
        with self._files.mutex:
            self._check()
            self._files.step("read")
            return bytes(self._inode.content[at : at + count])

    def preadinto(self, target: bytearray | memoryview, at: int) -> int:
        data = self.pread(memoryview(target).nbytes, at)
        memoryview(target).cast("B")[: len(data)] = data
        return len(data)

    def datasync(self) -> None:
        with self._files.mutex:
            self._check()
            lose = self._files.lose_pages
            self._files.step("sync", changes=True, cut=lambda _: lose(self._inode))
            self._inode.sync()

    def start_writing(self, count: int, at: int) -> None: ...
    def forget_cached(self, at: int = 0, count: int = 0) -> None: ...
    def read_ahead(self, count: int, at: int) -> None: ...
    def truncate(self, size: int) -> None:
        with self._files.mutex:
            self._check(writes=True)
            self._files.step("truncate", changes=True)
            self._inode.truncate(size)

    def size(self) -> int:
        with self._files.mutex:
            self._check()
            return len(self._inode.content)

    def close(self) -> None:
        self._is_closed = True

    def _check(self, *, writes: bool = False) -> None:
        self._files.check_alive(self._boot)
        if self._is_closed or (writes and not self._is_writable):
            raise StorageFailed(f"cannot use {self._path}: Bad file descriptor")

    def _cut(self, data: bytes, at: int, part: float) -> None:
        self._inode.write(data[: int(len(data) * part)], at)


class SimLock:
    """A held lock."""

    def __init__(self, locks: set[Path], path: Path) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class _Fault:
    """An operation that will fail."""

    def __init__(self, operation: str, after: int, times: int, error: type[DanubiusError]) -> None:
        self._operation = operation
        self._after = after
        self._times = times
        self.error = error

    def strikes(self, operation: str) -> bool:
        if operation != self._operation or self._times == 0:
            return False
        if self._after > 0:
            self._after -= 1
            return False
        self._times -= 1
        return True


class _NameChange:
    """One change of a directory that is not yet durable."""

    def __init__(self, directory: Path, names: dict[Path, Inode | None], made: Path | None) -> None:
        self.directory = directory
        self.names = names
        self.made = made


def _apply_names(names: dict[Path, Inode], changes: dict[Path, Inode | None]) -> None:
    for path, inode in changes.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
