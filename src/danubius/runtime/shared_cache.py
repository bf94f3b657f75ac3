"""Bytes in memory that many threads read: loaded once by whoever needs them first, the last used ones up to a bound.

Invariants:
- A key is loaded by one thread at a time; others that want it meanwhile wait for that one, and share its failure.
- `bytes` is the length of everything kept, at most `bytes_max`, unless the last one alone is larger.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Key = TypeVar("Key", bound="Hashable")

WAIT_S: Final = 120.0
"""Whoever waits longer for another's load loads it himself."""


class _Load:
    """One load under way."""

    __slots__ = ("data", "done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.data: bytes | None = None
        self.error: Exception | None = None


class SharedCache(Generic[Key]):
    """Bounded in bytes. `hits` and `misses` count what `get` found, or had to load or wait for."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, bytes] = OrderedDict()
        self._loading: dict[Key, _Load] = {}
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def __contains__(self, key: Key) -> bool:
        """Whether it is there, or on its way."""
        with self._lock:
            return key in self._kept or key in self._loading

    def get(self, key: Key, load: Callable[[], bytes], *, counts: bool = True) -> bytes:
        """The bytes, which `load` gives if nobody has them yet. Raises what it raises."""
        with self._lock:
            data = self._kept.get(key)
            if counts:
                self.hits += data is not None
                self.misses += data is None
            if data is not None:
                self._kept.move_to_end(key)
                return data
            other = self._loading.get(key)
            mine = _Load()
            if other is None:
                self._loading[key] = mine
        if other is not None and other.done.wait(WAIT_S):
            if other.error is not None:
                raise other.error
            assert other.data is not None
            return other.data
        return self._load(key, mine, load)

    def drop(self, key: Key) -> None:
        """The next `get` loads it again."""
        with self._lock:
            self._loading.pop(key, None)
            data = self._kept.pop(key, None)
            if data is not None:
                self.bytes -= len(data)

    def _load(self, key: Key, mine: _Load, load: Callable[[], bytes]) -> bytes:
        try:
            mine.data = load()
        except Exception as error:
            mine.error = error
            raise
        else:
            return mine.data
        finally:
            with self._lock:
                # What was dropped meanwhile is not kept: it was read before whoever dropped it wanted it anew.
                if self._loading.get(key) is mine:
                    del self._loading[key]
                    if mine.data is not None:
                        self._keep(key, mine.data)
            mine.done.set()

    def _keep(self, key: Key, data: bytes) -> None:
        self._kept[key] = data
        self.bytes += len(data)
        while self.bytes > self._bytes_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= len(oldest)
