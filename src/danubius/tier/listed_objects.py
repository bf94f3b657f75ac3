"""Names kept beside the objects, for stores that cannot say what they hold (Redis through OpenDAL is one).

Every folder has an object `folder.names`, which lists what is in it, a line each, folders with a slash, and ends with
a dot. A name is written there before its object and removed after it: so the lists name all that exists, and sometimes
what does not, which `list` finds out. Only one process at a time may write below a folder: two would take names out of
each other's lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import ObjectNotFound, StorageFailed
from danubius.model.limits import MIB
from danubius.runtime.threads import Lock
from danubius.tier.objects import ObjectInfo, check_name, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.model.buffers import Buffer
    from danubius.tier.objects import ObjectStore

_NAMES: Final = "folder.names"
_NAMES_BYTES_MAX: Final = 64 * MIB
_END: Final = b"\n.\n"
_TRIES: Final = 8


class ListedObjects:
    """Another store, and the lists of its names. One lock for all lists: they are read, changed and written back."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = Lock()

    @property
    def url(self) -> str:
        return self._objects.url

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        check_name(name)
        if replace:
            if self._objects.stat(name) is None:
                with self._lock:
                    self._add(name)
            return self._objects.put(name, parts, replace=True)
        # Such stores cannot refuse by themselves: here one of several threads wins.
        with self._lock:
            if self._objects.stat(name) is not None:
                return False
            self._add(name)
            return self._objects.put(name, parts)

    def refuses(self, name: str) -> bool:
        check_name(name)
        return False  # only among the threads of one process

    def get(self, name: str, at: int, count: int) -> bytes:
        return self._objects.get(name, at, count)

    def stat(self, name: str) -> ObjectInfo | None:
        return self._objects.stat(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folders = [check_prefix(prefix)]
        while folders:
            folder = folders.pop()
            for child in sorted(self._names(folder)):
                if child.endswith("/"):
                    folders.append(folder + child)
                elif (info := self._objects.stat(folder + child)) is not None:
                    yield info

    def delete(self, name: str) -> None:
        self._objects.delete(check_name(name))
        with self._lock:
            # A writer of the same name may have come between: its object must stay listed.
            if self._objects.stat(name) is None:
                self._remove(name)

    def close(self) -> None:
        self._objects.close()

    def _add(self, name: str) -> None:
        # From the top, so that there is a way to every list: a crash on the way leaves lists that are empty.
        parts = name.split("/")
        folder = ""
        for number, part in enumerate(parts):
            child = part if number == len(parts) - 1 else part + "/"
            names = self._names(folder)
            if child not in names:
                self._write(folder, names | {child})
            folder += child

    def _remove(self, name: str) -> None:
        while name:
            folder, _, child = name.rstrip("/").rpartition("/")
            folder = folder + "/" if folder else ""
            if name.endswith("/"):
                child += "/"
            names = self._names(folder) - {child}
            self._write(folder, names)
            if names:
                return
            name = folder

    def _names(self, folder: str) -> set[str]:
        for _ in range(_TRIES):
            try:
                data = self._objects.get(folder + _NAMES, 0, _NAMES_BYTES_MAX)
            except ObjectNotFound:
                return set()
            # It may be replaced by a longer one while it is read.
            if data.endswith(_END):
                return set(data.removesuffix(_END).decode("ascii").split())
        raise StorageFailed(f"the list of {folder or 'all folders'} in {self.url} is incomplete")

    def _write(self, folder: str, names: set[str]) -> None:
        if names:
            content = "\n".join(sorted(names)).encode("ascii")
            self._objects.put(folder + _NAMES, [content, _END], replace=True)
        else:
            self._objects.delete(folder + _NAMES)
