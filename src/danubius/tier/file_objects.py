"""Objects in the files of a directory: a disk of one's own, or one that the network brings.

An object is written in the root under a name that only its writer knows, synced, and then linked to its place, which
the file system does for one of several at once. So nobody sees a part of one; a crash leaves at most such a file,
which no list shows, and which is removed by whoever opens the directory a day later.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Final

from danubius.errors import ObjectNotFound, StorageFailed
from danubius.runtime.clock import SystemClock
from danubius.runtime.files import LocalFiles, translate
from danubius.runtime.large_file import LargeFile
from danubius.tier.objects import ObjectInfo, check_name, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from danubius.model.buffers import Buffer
    from danubius.runtime.clock import Clock

_TEMPORARY: Final = ".new-"
"""How files begin that are not objects yet: no part of a name starts with a dot."""
_ABANDONED_S: Final = 24 * 3600
"""Nobody writes one object for so long."""
_TRIES: Final = 16
"""How often a folder is made again that another one's `delete` removed because it was empty."""


class FileObjects:
    """A directory tree; the parts of a name are its folders."""

    def __init__(
        self, root: Path, *, clock: Clock | None = None, is_read_only: bool = False
    ) -> None:
        """`is_read_only`: nothing is made or removed here; whoever only reads may not be allowed to."""
        self._root = root
        self._files = LocalFiles()
        if is_read_only:
            if not root.is_dir():
                raise StorageFailed(f"there is no directory {root} on this machine")
            return
        self._files.mkdir(root, sync=True)
        self._remove_abandoned((clock or SystemClock()).wall_us() / 1e6 - _ABANDONED_S)

    def _remove_abandoned(self, before_s: float) -> None:
        for name in self._files.listdir(self._root):
            path = self._root / name
            with contextlib.suppress(FileNotFoundError):
                if name.startswith(_TEMPORARY) and path.stat().st_mtime < before_s:
                    self._files.remove(path)

    @property
    def url(self) -> str:
        return f"fs://{self._root}"

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        path = self._path(name)
        if not replace and self._files.exists(path):
            return False
        temporary = self._root / (_TEMPORARY + secrets.token_hex(8))
        try:
            self._write(temporary, parts)
            return self._publish(temporary, path, replace=replace)
        finally:
            # Also when the parts themselves raise: what was written of them is no object.
            self._files.remove(temporary)

    def _write(self, temporary: Path, parts: Iterable[Buffer]) -> None:
        with contextlib.closing(LargeFile(temporary)) as file:
            for part in parts:
                file.write(part)
            file.sync()

    def _publish(self, temporary: Path, path: Path, *, replace: bool) -> bool:
        failure: Exception | None = None
        for _ in range(_TRIES):
            try:
                self._files.mkdir(path.parent, sync=True)
                if replace:
                    temporary.replace(path)
                else:
                    os.link(temporary, path)
            except FileExistsError:
                return False
            except (FileNotFoundError, StorageFailed) as error:
                # A folder on the way was removed because it was empty, or something is really wrong.
                failure = error
                continue
            except OSError as error:
                raise translate(error, "store", path) from error
            self._sync_folder(path.parent)
            return True
        raise StorageFailed(f"cannot store {path}: {failure}")

    def refuses(self, name: str) -> bool:
        check_name(name)
        return True  # that is what `link` is for

    def get(self, name: str, at: int, count: int) -> bytes:
        path = self._path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFound(f"{self.url} has no object {name}") from None
        except OSError as error:
            raise translate(error, "open", path) from error
        try:
            return _read(descriptor, at, count)
        except IsADirectoryError:
            raise ObjectNotFound(f"{self.url} has no object {name}") from None
        except OSError as error:
            raise translate(error, "read", path) from error
        finally:
            os.close(descriptor)

    def stat(self, name: str) -> ObjectInfo | None:
        return self._describe(self._path(name), name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        # Folder by folder: one that is removed meanwhile has no objects any more.
        folders = [self._root / prefix]
        while folders:
            folder = folders.pop()
            for path in self._entries(folder):
                if path.is_dir():
                    folders.append(path)
                    continue
                info = self._describe(path, path.relative_to(self._root).as_posix())
                if info is not None:
                    yield info

    def _entries(self, folder: Path) -> list[Path]:
        try:
            paths = sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise translate(error, "list", folder) from error
        return [path for path in paths if not path.name.startswith(".")]

    def _describe(self, path: Path, name: str) -> ObjectInfo | None:
        try:
            facts = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise translate(error, "look at", path) from error
        if path.is_dir():
            return None
        return ObjectInfo(name, facts.st_size, facts.st_mtime_ns // 1_000_000)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise translate(error, "remove", path) from error
        self._sync_folder(path.parent)
        self._remove_empty(path.parent)

    def _sync_folder(self, folder: Path) -> None:
        for number in range(_TRIES):
            try:
                self._files.sync_dir(folder)
            except StorageFailed:
                if number == _TRIES - 1:
                    raise
                # Whoever removes the last object of a folder removes the folder: then there is no name to keep.
                if self._files.exists(folder):
                    continue
            return

    def _remove_empty(self, folder: Path) -> None:
        """Folders stay while something is in them: the system itself refuses to remove those."""
        with contextlib.suppress(OSError):
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent

    def close(self) -> None:
        pass

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)


def _read(descriptor: int, at: int, count: int) -> bytes:
    # Memory is taken for all that is asked for, so no more is asked for than there is.
    count = max(0, min(count, os.fstat(descriptor).st_size - at))
    data = os.pread(descriptor, count, at)
    if len(data) == count or not data:
        return data
    parts = [data]
    while data:
        count -= len(data)
        at += len(data)
        data = os.pread(descriptor, count, at)
        parts.append(data)
    return b"".join(parts)
