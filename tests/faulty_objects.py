"""An object store that goes wrong as it is told: at a certain call, for a while, or in what it gives back.

faulty = FaultyObjects(MemoryObjects())
faulty.fail_at(3)                      the third call from now on fails; `"put"`: the third put
faulty.go_down() / faulty.come_up()    every call fails
faulty.lose_next_put()                 it is acknowledged, and there is nothing
faulty.keep_next_put_and_fail()        it is stored, and the answer is lost
faulty.tear_next_put(100)              the error comes after so many bytes of the parts were taken; nothing is stored
faulty.cut_reads(10)                   reads give so many bytes fewer, until `heal`; `times` bounds how often
faulty.flip_reads(at)                  one bit of the byte at this position of the object is wrong, likewise
faulty.delay_s = 0.2                   every call takes so long
faulty.before["put"] = callable        called with the name before the call goes on (a barrier, a kill)
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from danubius.errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from danubius.model.buffers import Buffer
    from danubius.tier.objects import ObjectInfo, ObjectStore

_FOR_EVER = 1 << 60


class FaultyObjects:
    """A wrapper around any ObjectStore. Safe for threads, as far as the wrapped one is."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.names: list[tuple[str, str]] = []
        """(method, name) of every call, in order."""
        self.before: dict[str, Callable[[str], None]] = {}
        self.delay_s = 0.0
        self.failure: Callable[[], Exception] = lambda: StorageFailed(
            "the object store does not answer (this is a test)"
        )
        self._lock = threading.Lock()
        self._is_down = False
        self._countdown: dict[str, list[int]] = {}
        self._put_fault: tuple[str, int] | None = None
        self._cut = (0, 0)
        self._flip = (0, 0)

    # ------------------------------------------------------------ what goes wrong

    def fail_at(self, number: int, method: str = "") -> None:
        """Fail the call of this number, counted from 1 and from now; of one method, or of any."""
        self._countdown.setdefault(method, []).append(number)

    def go_down(self) -> None:
        self._is_down = True

    def come_up(self) -> None:
        self._is_down = False

    def lose_next_put(self) -> None:
        self._put_fault = ("lose", 0)

    def keep_next_put_and_fail(self) -> None:
        self._put_fault = ("keep", 0)

    def tear_next_put(self, after_bytes: int) -> None:
        self._put_fault = ("tear", after_bytes)

    def cut_reads(self, count: int, *, times: int = _FOR_EVER) -> None:
        self._cut = (count, times)

    def flip_reads(self, at: int, *, times: int = _FOR_EVER) -> None:
        self._flip = (at, times)

    def heal(self) -> None:
        self._is_down = False
        self._countdown.clear()
        self._put_fault = None
        self._cut = self._flip = (0, 0)
        self.delay_s = 0.0

    # ------------------------------------------------------------ the port

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, name: str, parts: Iterable[Buffer], *, replace: bool = False) -> bool:
        self._enter("put", name)
        with self._lock:
            fault, self._put_fault = self._put_fault, None
        match fault:
            case None:
                return self.inner.put(name, parts, replace=replace)
            case ("lose", _):
                for _ in parts:
                    pass
                return True
            case ("keep", _):
                self.inner.put(name, parts, replace=replace)
                raise self.failure()
            case (_, after_bytes):
                taken = 0
                for part in parts:
                    taken += len(part)
                    if taken > after_bytes:
                        break
                raise self.failure()

    def refuses(self, name: str) -> bool:
        return self.inner.refuses(name)

    def get(self, name: str, at: int, count: int) -> bytes:
        self._enter("get", name)
        data = self.inner.get(name, at, count)
        with self._lock:
            cut, times = self._cut
            if cut and times:
                self._cut = (cut, times - 1)
                data = data[: max(0, len(data) - cut)]
            flip, times = self._flip
            if times and at <= flip < at + len(data):
                self._flip = (flip, times - 1)
                wrong = bytearray(data)
                wrong[flip - at] ^= 0x10
                data = bytes(wrong)
        return data

    def stat(self, name: str) -> ObjectInfo | None:
        self._enter("stat", name)
        return self.inner.stat(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._enter("list", prefix)
        return self.inner.list(prefix)

    def delete(self, name: str) -> None:
        self._enter("delete", name)
        self.inner.delete(name)

    def close(self) -> None:
        self.inner.close()

    def _enter(self, method: str, name: str) -> None:
        with self._lock:
            self.calls[method] += 1
            self.names.append((method, name))
            is_due = self._count_down(method) | self._count_down("")
        if self.delay_s:
            time.sleep(self.delay_s)
        hook = self.before.get(method)
        if hook is not None:
            hook(name)
        if self._is_down or is_due:
            raise self.failure()

    def _count_down(self, method: str) -> bool:
        numbers = [number - 1 for number in self._countdown.get(method, [])]
        self._countdown[method] = [number for number in numbers if number > 0]
        return 0 in numbers
