"""Objects in memory: for tests, and for trying things out. Those of one name are shared by the whole process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danubius.errors import ObjectNotFound
from danubius.runtime.clock import SystemClock
from danubius.tier.objects import ObjectInfo, check_name, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from danubius.model.buffers import Buffer
    from danubius.runtime.clock import Clock

Kept = dict[str, tuple[bytes, int]]
"""Name -> content, and when it was stored."""
_PLACES: Final[dict[str, Kept]] = {}


class MemoryObjects:
    """A dict; each of its operations is atomic, so threads need no lock."""

    def __init__(self, name: str = "", *, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._objects: Kept = _PLACES.setdefault(name, {}) if name else {}

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        check_name(name)
        kept = (b"".join(parts), self._clock.wall_us() // 1000)
        if replace:
            self._objects[name] = kept
            return True
        return self._objects.setdefault(name, kept) is kept

    def refuses(self, name: str) -> bool:
        check_name(name)
        return True

    def get(self, name: str, at: int, count: int) -> bytes:
        kept = self._objects.get(check_name(name))
        if kept is None:
            raise ObjectNotFound(f"{self.url} has no object {name}")
        return kept[0][at : at + count]

    def stat(self, name: str) -> ObjectInfo | None:
        kept = self._objects.get(check_name(name))
        return None if kept is None else ObjectInfo(name, len(kept[0]), kept[1])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        for name, (data, modified_ms) in sorted(self._objects.items()):
            if name.startswith(prefix):
                yield ObjectInfo(name, len(data), modified_ms)

    def delete(self, name: str) -> None:
        self._objects.pop(check_name(name), None)

    def close(self) -> None:
        pass
