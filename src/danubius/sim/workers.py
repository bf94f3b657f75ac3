"""Workers on a simulated loop: the twin of `runtime.threads` that runs by itself, in virtual time.

- What is put is handled after a moment, in the order of `put`, with all that came meanwhile; what the handler does is
  done at one instant, and the loop hears of it after another moment. A process that dies in between has done it and
  told nobody.
- While it does something `try_run` is refused, as it is where the handler finds the work too large.
- A caller of `put_and_wait` sees its work done, or waits in vain; which of them is left to chance.
- A disk that goes off in the middle takes its process with it; any other exception of a handler is a bug, and raised.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from danubius.sim.disk import PowerLost

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable

    from danubius.runtime.threads import Handle, Item, OnCrash
    from danubius.sim.loop import Call, SimLoop

_Given = TypeVar("_Given")

WAKE_S: Final = 0.2e-3
"""Until a thread looks at what it was given, at the most."""
SOON: Final = 0.7
"""Of all that a caller waits for, as much is done within the wait."""


class LoopWorker(Generic[_Given]):
    """One simulated thread."""

    def __init__(
        self, threads: LoopThreads, name: str, handle: Handle[_Given], on_crash: OnCrash[_Given]
    ) -> None:
        self.name = name
        self._threads = threads
        self._loop = threads.loop
        self._handle = handle
        self._on_crash = on_crash
        self._inbox: list[_Given] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._posted: list[Call] | None = None
        """What the loop is to hear when the work under way is done; None: there is none."""
        self._wake_ns: int | None = None
        self._has_stopped = False
        self._crash: BaseException | None = None

    def start(self) -> None:
        """It looks when something was put."""

    def put(self, item: _Given) -> None:
        assert not self._has_stopped, f"{self.name} was stopped"
        if self._crash is not None:
            self._on_crash([item], self._crash)
            return
        self._inbox.append(item)
        if self._posted is None and not self._is_turn_due:
            self._is_turn_due = True
            self._arm(self._threads.dice.uniform(0, WAKE_S))

    def try_run(self, item: _Given, is_quick: Callable[[_Given], bool]) -> bool:
        if self._is_busy or self._crash is not None or not is_quick(item):
            return False
        wake_ns = self._handle([item], self._loop.monotonic_ns())
        if wake_ns is not None and (self._wake_ns is None or wake_ns < self._wake_ns):
            self._sleep_until(wake_ns)
        return True

    def put_and_wait(
        self,
        item: _Given,
        is_quick: Callable[[_Given], bool],
        timeout_s: float,  # noqa: ARG002  # chance says whether it was enough
    ) -> bool:
        if self._is_busy or self._crash is not None or not is_quick(item):
            return False
        if self._threads.dice.random() < SOON:
            self._sleep_until(self._handle([item], self._loop.monotonic_ns()))
        else:
            self.put(item)
        return True

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stop(self, timeout_s: float = 0.0) -> bool:  # noqa: ARG002  # nothing can hang here
        if not self._has_stopped:
            self._has_stopped = True
            self._disarm()
            if self._posted is not None:
                self._loop.release(self._posted)
                self._posted = None
            if self._inbox and self._crash is None:
                items, self._inbox = self._inbox, []
                self._handle(items, self._loop.monotonic_ns())
        return True

    # ------------------------------------------------------------ inside

    @property
    def _is_busy(self) -> bool:
        return bool(self._inbox) or self._posted is not None

    def _arm(self, delay_s: float) -> None:
        self._disarm()
        self._timer = self._loop.call_later(delay_s, self._turn)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sleep_until(self, wake_ns: int | None) -> None:
        self._wake_ns = wake_ns
        if wake_ns is not None:
            self._arm(max(0.0, (wake_ns - self._loop.monotonic_ns()) / 1e9))
        else:
            self._disarm()

    def _turn(self) -> None:
        self._timer = None
        self._is_turn_due = False
        items, self._inbox = self._inbox, []
        with self._loop.on_a_thread() as posted:
            try:
                wake_ns = self._handle(items, self._loop.monotonic_ns())
            except PowerLost:
                self._inbox.clear()
                return
            except BaseException as crash:
                self._crash = crash
                self._on_crash(items, crash)
                raise
        self._posted = posted
        self._timer = self._loop.call_later(self._threads.work_s(), self._done, wake_ns)

    def _done(self, wake_ns: int | None) -> None:
        self._timer = None
        posted, self._posted = self._posted, None
        if posted is not None:
            self._loop.release(posted)
        if self._inbox:
            self._is_turn_due = True
            self._arm(self._threads.dice.uniform(0, WAKE_S))
        else:
            self._sleep_until(wake_ns)


class LoopThreads:
    """A `Spawn` for one simulated process."""

    def __init__(
        self, loop: SimLoop, dice: random.Random, *, quick_s: float = 1e-3, slow_s: float = 0.05
    ) -> None:
        """`quick_s`: what work takes, as a rule, at the most. `slow_s`: now and then it takes so much."""
        self.loop = loop
        self.dice = dice
        self.slowness = 0.02
        """How often it is slow. May be changed at any time."""
        self._quick_s = quick_s
        self._slow_s = slow_s

    def work_s(self) -> float:
        is_slow = self.dice.random() < self.slowness
        return self.dice.uniform(0, self._slow_s if is_slow else self._quick_s)

    def __call__(
        self, name: str, handle: Handle[Item], *, on_crash: OnCrash[Item]
    ) -> LoopWorker[Item]:
        return LoopWorker(self, name, handle, on_crash)
