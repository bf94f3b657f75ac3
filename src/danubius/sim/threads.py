"""Workers without threads: the twin of `runtime.threads`. Time and turns are the test's to give."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Generic, TypeVar

from danubius.runtime.threads import Item

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.runtime.threads import Handle, OnCrash

_Given = TypeVar("_Given")


class SimWorker(Generic[_Given]):
    """Holds what it is given until `turn`; `stop` takes a last one."""

    def __init__(self, name: str, handle: Handle[_Given], *, on_crash: OnCrash[_Given]) -> None:
        self.name = name
        self.wake_ns: int | None = None
        """When the handler wants to be called at the latest."""
        self._handle = handle
        self._on_crash = on_crash
        self._inbox: list[_Given] = []
        self._crash: BaseException | None = None
        self._has_stopped = False

    def start(self) -> None:
        """Nothing runs by itself here."""

    def put(self, item: _Given) -> None:
        assert not self._has_stopped, f"{self.name} was stopped"
        if self._crash is None:
            self._inbox.append(item)
        else:
            self._on_crash([item], self._crash)

    def aside(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def try_run(
        self,
        item: _Given,  # noqa: ARG002  the test says when it is time
        is_quick: Callable[[_Given], bool],  # noqa: ARG002
    ) -> bool:
        return False

    def put_and_wait(
        self,
        item: _Given,  # noqa: ARG002  as above
        is_quick: Callable[[_Given], bool],  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> bool:
        return False

    def stop(self, timeout_s: float = 0.0) -> bool:  # noqa: ARG002  nothing can hang here
        self._has_stopped = True
        if self._inbox and self._crash is None:
            self.turn(0)
        return True

    def turn(self, now_ns: int) -> None:
        """Let the handler have everything that waits, as the thread would."""
        items, self._inbox = self._inbox, []
        try:
            self.wake_ns = self._handle(items, now_ns)
        except BaseException as crash:
            self._crash = crash
            self._on_crash(items, crash)
            raise


class SimThreads:
    """A `Spawn` that keeps the workers it made, for the test to turn."""

    def __init__(self) -> None:
        self.workers: list[SimWorker[object]] = []

    def __call__(
        self, name: str, handle: Handle[Item], *, on_crash: OnCrash[Item]
    ) -> SimWorker[Item]:
        worker = SimWorker[Item](name, handle, on_crash=on_crash)
        self.workers.append(worker)  # pyright: ignore[reportArgumentType]  tests only turn them
        return worker

    def turn(self, now_ns: int = 0) -> None:
        for worker in self.workers:
            worker.turn(now_ns)
