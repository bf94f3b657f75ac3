"""The only door to the disk: the ports `Files` and `File`, and the operating system behind them.

Invariants:
- Every method is synchronous and may block: call it from a worker thread, never from the loop.
- No OSError passes this port. A full disk or quota is `StorageFull`, everything else is
  `StorageFailed`; both name the path and keep the cause.
- A write that raised may have been done in part. Nothing is durable before `datasync`, `sync_dir`,
  `sync_all` or `write_atomic` returned; after a failed sync nothing is known about earlier writes.
- A name (create, rename, remove, mkdir) is durable only after its directory was synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

from danubius.errors import DanubiusError, DataDirectoryInUse, StorageFailed, StorageFull
from danubius.model.file_part import FileIdentity
from danubius.runtime.machine import running_machine
from danubius.runtime.privacy import FILE_MODE, make_directories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from danubius.model.buffers import Buffer

IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LOCK_NOTE_BYTES_MAX: Final = 32
_SYNC_FILE_RANGE_WRITE: Final = 2
_RWF_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Linux: the write returns when it is durable."""
TEMPORARY_SUFFIX: Final = ".tmp"
"""`write_atomic` works under this suffix; a file that bears it after a crash is rubbish."""


class File(Protocol):
    """One open file. Positions are explicit, so threads may share it for reading."""

    @property
    def path(self) -> Path: ...
    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write all buffers back to back from position `at`; all of it, or raise.

        A memoryview must be of single bytes.
        """
        ...

    def pwritev_synced(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write like `pwritev`, and make these very bytes durable: not what else was written to the file."""
        ...

    def pread(self, count: int, at: int) -> bytes:
        """Read `count` bytes, fewer only at the end of the file."""
        ...

    def preadinto(self, target: bytearray | memoryview, at: int) -> int:
        """Fill `target`; the number of bytes read is smaller only at the end of the file."""
        ...

    def datasync(self) -> None:
        """Make content and size durable."""
        ...

    def start_writing(self, count: int, at: int) -> None:
        """Let the system carry these bytes to the disk now, so that the next sync has less left to do. A hint."""
        ...

    def forget_cached(self, at: int = 0, count: int = 0) -> None:
        """Nobody will read these bytes soon, by default all: the memory of what is synced can hold something else.

        A hint.
        """
        ...

    def read_ahead(self, count: int, at: int) -> None:
        """These bytes will be read soon: fetch them meanwhile. A hint."""
        ...

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None:
        """Give the file back; a second call does nothing. Does not sync."""
        ...


class HeldLock(Protocol):
    """A lock that is ours until `release`, or until the process ends in any way."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system as storage code sees it; `sim.disk.SimFiles` is its crashing, filling twin."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        """Open a file; `create` makes it if absent, for its owner alone, and never empties it."""
        ...

    def exists(self, path: Path) -> bool: ...
    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted; an absent directory is empty."""
        ...

    def mkdir(self, path: Path, *, sync: bool = False) -> None:
        """Make a directory and its absent parents, private ones; `sync` makes the new names durable."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; absent is fine."""
        ...

    def rmtree(self, path: Path) -> None:
        """Remove a directory and everything below it; absent is fine."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source`, atomically."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        ...

    def sync_all(self, path: Path) -> None:
        """Make everything on the file system of `path` durable: content, sizes and names."""
        ...

    def identify(self, path: Path) -> FileIdentity | None:
        """Which file this is on this machine; None if it is none, or nobody else could open it."""
        ...

    def free_bytes(self, path: Path) -> int: ...
    def write_atomic(self, path: Path, data: Buffer) -> None:
        """Replace a file durably: after a crash it is the old one or the new one, whole."""
        ...

    def read_bytes(self, path: Path) -> bytes: ...
    def lock(self, path: Path) -> HeldLock:
        """Hold a lock file, or raise DataDirectoryInUse."""
        ...


class LocalFiles:
    """The operating system's files."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> LocalFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        try:
            return LocalFile(path, os.open(path, flags, FILE_MODE))
        except OSError as error:
            raise translate(error, "open", path) from error

    def exists(self, path: Path) -> bool:
        try:
            return path.exists()
        except OSError as error:
            raise translate(error, "look for", path) from error

    def listdir(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translate(error, "list", path) from error

    def mkdir(self, path: Path, *, sync: bool = False) -> None:
        try:
            absent = make_directories(path)
        except OSError as error:
            raise translate(error, "make the directory", path) from error
        if sync:
            for level in absent:
                self.sync_dir(level.parent)

    def remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise translate(error, "remove", path) from error

    def rmtree(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate(error, "remove", path) from error

    def rename(self, source: Path, target: Path) -> None:
        try:
            source.replace(target)
        except OSError as error:
            raise translate(error, f"rename {source} to", target) from error

    def sync_dir(self, path: Path) -> None:
        self._sync_with(os.fsync, path)

    def sync_all(self, path: Path) -> None:
        self._sync_with(_sync_file_system, path)

    def identify(self, path: Path) -> FileIdentity | None:
        machine = running_machine()
        try:
            facts = path.stat()
        except OSError:
            return None
        return FileIdentity(machine, facts.st_dev, facts.st_ino) if machine else None

    def free_bytes(self, path: Path) -> int:
        try:
            facts = os.statvfs(path)
        except OSError as error:
            raise translate(error, "ask for the free space of", path) from error
        return facts.f_bavail * facts.f_frsize

    def write_atomic(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            file = self.open(temporary, create=True)
            try:
                file.truncate(0)
                file.pwritev([data], 0)
                file.datasync()
            finally:
                file.close()
            self.rename(temporary, path)
        except DanubiusError:
            # A disk that cannot take the file may still free what was written of it.
            self.remove(temporary)
            raise
        self.sync_dir(path.parent)

    def read_bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise translate(error, "read", path) from error

    def lock(self, path: Path) -> LocalLock:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = file.pread(_LOCK_NOTE_BYTES_MAX, 0).decode("ascii", "replace").strip()
            file.close()
            raise DataDirectoryInUse(
                f"{path.parent} is in use by another broker (process {owner or 'unknown'}): "
                "stop it, or choose another data directory"
            ) from error
        except OSError as error:
            file.close()
            raise translate(error, "lock", path) from error
        try:
            file.truncate(0)
            file.pwritev([f"{os.getpid()}\n".encode("ascii")], 0)
        except StorageFull:
            # The note is a courtesy to people; a full disk must not keep a broker from starting.
            pass
        return LocalLock(file)

    def _sync_with(self, sync: Callable[[int], None], path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise translate(error, "sync", path) from error


class LocalFile:
    """A file descriptor and its path."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> Path:
        return self._path

    @property
    def descriptor(self) -> int:
        """-1 once closed: a late call fails instead of reaching a file that got the same number."""
        return self._descriptor

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        try:
            if len(buffers) <= IOV_MAX:
                self._write_some(buffers, at)
                return
            for first in range(0, len(buffers), IOV_MAX):
                at = self._write_some(buffers[first : first + IOV_MAX], at)
        except OSError as error:
            raise translate(error, "write to", self._path) from error

    def _write_some(self, buffers: Sequence[Buffer], at: int) -> int:
        remaining = sum(map(len, buffers))
        while remaining:
            written = os.pwritev(self._descriptor, buffers, at)
            if written == 0:
                raise OSError(errno.EIO, "the write made no progress")
            at += written
            remaining -= written
            if remaining:
                buffers = _after(buffers, written)
        return at

    def pwritev_synced(self, buffers: Sequence[Buffer], at: int) -> None:
        if _RWF_DSYNC and len(buffers) <= IOV_MAX:
            try:
                written = os.pwritev(self._descriptor, buffers, at, _RWF_DSYNC)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise translate(error, "write to", self._path) from error
            else:
                if written == sum(map(len, buffers)):
                    return
        self.pwritev(buffers, at)
        self.datasync()

    def pread(self, count: int, at: int) -> bytes:
        try:
            data = os.pread(self._descriptor, count, at)
            if len(data) == count or not data:
                return data
            parts = [data]
            remaining = count - len(data)
            while remaining and (
                data := os.pread(self._descriptor, remaining, at + count - remaining)
            ):
                parts.append(data)
                remaining -= len(data)
            return b"".join(parts)
        except OSError as error:
            raise translate(error, "read", self._path) from error

    def preadinto(self, target: bytearray | memoryview, at: int) -> int:
        view = memoryview(target).cast("B")
        done = 0
        try:
            while done < len(view):
                count = os.preadv(self._descriptor, [view[done:]], at + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise translate(error, "read", self._path) from error
        return done

    def datasync(self) -> None:
        try:
            _datasync(self._descriptor)
        except OSError as error:
            raise translate(error, "sync", self._path) from error

    def start_writing(self, count: int, at: int) -> None:
        if _sync_file_range is not None:
            _sync_file_range(self._descriptor, at, count, _SYNC_FILE_RANGE_WRITE)

    def forget_cached(self, at: int = 0, count: int = 0) -> None:
        _advise(self._descriptor, at, count, "POSIX_FADV_DONTNEED")

    def read_ahead(self, count: int, at: int) -> None:
        _advise(self._descriptor, at, count, "POSIX_FADV_WILLNEED")

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise translate(error, "truncate", self._path) from error

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise translate(error, "ask for the size of", self._path) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError as error:
                raise translate(error, "close", self._path) from error


class LocalLock:
    """A held flock. The file stays: removing it would let two brokers hold one name."""

    __slots__ = ("_file",)

    def __init__(self, file: LocalFile) -> None:
        self._file = file

    def release(self) -> None:
        self._file.close()


def raise_open_files_limit() -> int:
    """Let this process open as many files as the system allows it, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def translate(error: OSError, verb: str, path: Path) -> StorageFull | StorageFailed:
    """The DanubiusError for an OSError; raise it `from` the original."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(
            f"cannot {verb} {path}: {reason}; free some space, the broker goes on by itself"
        )
    return StorageFailed(f"cannot {verb} {path}: {reason}")


def _advise(descriptor: int, at: int, count: int, advice: str) -> None:
    # Not every system has it, and where it fails only speed is lost.
    if hasattr(os, advice):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, at, count, getattr(os, advice))


def _after(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """What is left of the buffers behind the first `written` bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if written < len(view):
            rest.append(view[written:])
            written = 0
        else:
            written -= len(view)
    return rest


def _datasync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync alone leaves the data in the drive's cache there.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _sync_file_system(descriptor: int) -> None:
    syncfs = _libc_call("syncfs", ctypes.c_int)
    if syncfs is None:
        os.sync()
    elif syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _libc_call(name: str, *types: Any) -> Any:
    """A function of the C library that Python does not offer; None where the system has no such thing."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = types
        function.restype = ctypes.c_int
    return function


_sync_file_range: Final = _libc_call(
    "sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)
