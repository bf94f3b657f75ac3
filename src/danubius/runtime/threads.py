"""A worker: one named thread with an inbox that it drains in batches.

Invariants:
- Items are handled in the order of `put`, each exactly once, by one thread (or, by `try_run` while
  the thread is idle, by the one that puts; never by two at a time).
- The handler is called with everything that waits, at most `drain_max` items, or with an empty
  list when the moment it asked for has come. It gets the monotonic clock and returns when it wants
  to be called at the latest (or None).
- `stop` lets everything that was put before it be handled first. The thread is no daemon: the
  process does not end in the middle of a write.
- A handler never raises in normal work. If it does, that is a bug: the worker ends, hands the
  items that nobody will handle to `on_crash`, and later items go there too. Those that the handler
  took out of its list (see `finishing`) were handled and do not go there.

The inbox has no bound of its own: whoever puts knows the bytes under way and stops by them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final, Generic, Protocol, TypeVar

Item = TypeVar("Item")
Handle = Callable[[list[Item], int], int | None]
"""(items, now_ns) -> the monotonic nanosecond by which to be called again, or None."""
OnCrash = Callable[[list[Item], BaseException], None]
_Given = TypeVar("_Given")

Lock = threading.Lock
"""For the few places that threads share; the data path has none."""

DRAIN_MAX: Final = 4096
STOP_TIMEOUT_S: Final = 30.0

log = logging.getLogger(__name__)


def finishing(items: list[Item]) -> Iterator[Item]:
    """Go through a handler's items; each leaves the list when the next is asked for, so a crash gives up the rest."""
    while items:
        yield items[0]
        del items[0]


class WorkerPort(Protocol[_Given]):
    """A worker as its owner sees it; `sim.threads.SimWorker` is the twin without a thread."""

    def start(self) -> None: ...
    def put(self, item: _Given) -> None: ...
    def try_run(self, item: _Given, is_quick: Callable[[_Given], bool]) -> bool: ...
    def put_and_wait(
        self, item: _Given, is_quick: Callable[[_Given], bool], timeout_s: float
    ) -> bool: ...
    def aside(self) -> contextlib.AbstractContextManager[None]: ...
    def stop(self, timeout_s: float = ...) -> bool: ...


class Spawn(Protocol):
    """What makes workers: `Worker` itself, or a twin."""

    def __call__(
        self, name: str, handle: Handle[Item], *, on_crash: OnCrash[Item]
    ) -> WorkerPort[Item]: ...


class _Stop:
    """What `stop` puts behind the last item."""


_STOP: Final = _Stop()


class _Nudge:
    """What `try_run` puts to make the thread look at the clock."""


_NUDGE: Final = _Nudge()


class Worker(Generic[Item]):
    """One thread that handles what it is given, in batches."""

    def __init__(
        self,
        name: str,
        handle: Handle[Item],
        *,
        on_crash: OnCrash[Item],
        drain_max: int = DRAIN_MAX,
    ) -> None:
        self._handle = handle
        self._on_crash = on_crash
        self._drain_max = drain_max
        self._inbox: queue.SimpleQueue[Item | _Stop | _Nudge] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=False)
        self._turn = threading.Lock()
        """Held by whoever runs the handler: the thread, or a caller of `try_run`."""
        self._put_count = 0
        self._handled_count = 0
        self._waiter: threading.Lock | None = None
        """Released when all that was put is handled; of a caller who waits for that."""
        self._wake_ns: int | None = None
        self._has_stopped = False
        self._crash: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand over an item; never waits. After `stop` nothing may be put."""
        assert not self._has_stopped, f"{self._thread.name} was stopped"
        self._put_count += 1
        self._inbox.put(item)
        if self._crash is not None:
            # The thread may have looked for leftovers before this one came.
            items = self._leftovers()
            if items:
                self._on_crash(items, self._crash)

    def try_run(self, item: Item, is_quick: Callable[[Item], bool]) -> bool:
        """Handle an item here and now if the worker is idle and `is_quick` agrees; the order of `put` is kept.

        For work so small that handing it over costs more. Only the thread that puts may call this.
        `is_quick` is asked while nobody else runs the handler, so it may look at the handler's
        state. False: nothing was done, the item is the caller's to `put`.
        """
        if self._put_count != self._handled_count or self._crash is not None:
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if not is_quick(item):
                return False
            wake_ns = self._handle([item], time.monotonic_ns())
        except BaseException as crash:  # as on the thread: nobody may wait for ever
            log.critical("worker crashed", exc_info=crash, extra={"worker": self._thread.name})
            self._crash = crash
            self._on_crash([item, *self._leftovers()], crash)
            return True
        finally:
            self._turn.release()
        if wake_ns is not None and (self._wake_ns is None or wake_ns < self._wake_ns):
            self._inbox.put(_NUDGE)  # the thread sleeps longer than the handler wants
        return True

    def put_and_wait(self, item: Item, is_quick: Callable[[Item], bool], timeout_s: float) -> bool:
        """Hand an item over if the worker is idle and `is_quick` agrees, and wait for it, no longer than told.

        For work that is nearly always quick but may hang: it is handled at once, and nobody is held up for
        long. Only the thread that puts may call this. False: nothing was done, the item is the caller's to `put`.
        """
        if self._put_count != self._handled_count or self._crash is not None:
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if not is_quick(item):
                return False
        finally:
            self._turn.release()
        waiter = threading.Lock()
        waiter.acquire()
        self._put_count += 1  # first: the thread may be about to end an empty turn
        self._waiter = waiter
        self._inbox.put(item)
        # Held for ever if the thread crashes now; then those who wait hear of it by `on_crash`.
        waiter.acquire(timeout=timeout_s)
        self._waiter = None
        return True

    @contextlib.contextmanager
    def aside(self) -> Generator[None]:
        """For the handler on the thread: let `try_run` in meanwhile, as state may change behind its back here only."""
        assert self.is_current, "only the thread itself can step aside"
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Handle what was put, then end the thread; False if that takes too long."""
        if not self._has_stopped:
            self._has_stopped = True
            self._inbox.put(_STOP)
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this worker's thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while True:
            items, is_last = self._drain(self._wake_ns)
            count = len(items)
            try:
                if items or not is_last:
                    with self._turn:
                        self._wake_ns = self._handle(items, time.monotonic_ns())
                    self._handled_count += count
                    waiter = self._waiter
                    if waiter is not None and self._put_count == self._handled_count:
                        self._waiter = None
                        waiter.release()
            except BaseException as crash:
                # Whatever it was, a dead thread must not take its items into the grave.
                log.critical("worker crashed", exc_info=crash, extra={"worker": self._thread.name})
                self._crash = crash
                # Without any items too: what the handler keeps to itself has been given up as well.
                self._on_crash(items + self._leftovers(), crash)
                return
            if is_last:
                return

    def _drain(self, wake_ns: int | None) -> tuple[list[Item], bool]:
        inbox = self._inbox
        try:
            item = inbox.get(timeout=_seconds_until(wake_ns))
        except queue.Empty:
            return [], False
        items: list[Item] = []
        # One consumer: what qsize counts is there for certain, and no exception ends the loop.
        for _ in range(min(inbox.qsize(), self._drain_max - 1)):
            if isinstance(item, _Stop):
                break
            if not isinstance(item, _Nudge):
                items.append(item)
            item = inbox.get()
        if isinstance(item, _Stop):
            return items, True
        if not isinstance(item, _Nudge):
            items.append(item)
        return items, False

    def _leftovers(self) -> list[Item]:
        """Empty the inbox; safe on two threads at once, as one of them gets each item."""
        items: list[Item] = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if not isinstance(item, _Stop | _Nudge):
                    items.append(item)
        return items


def _seconds_until(wake_ns: int | None) -> float | None:
    if wake_ns is None:
        return None
    return max(0.0, (wake_ns - time.monotonic_ns()) / 1e9)
