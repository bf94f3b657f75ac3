"""Simulated processes: what runs on a simulated loop belongs to one of them, and nothing of it runs once that is dead.

A process is a variable of the context, so that every callback, timer and task that its code starts is its own without
being told so. Death is at once and without a word: no `finally`, no callback, no timer. What its tasks held is let go
of at the end of the world.
"""

from __future__ import annotations

import contextlib
import contextvars
import types
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import asyncio


class Process:
    """One life of one program on a host."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_alive = True
        self.is_running = True
        """False while it is stopped, and for good when it is dead."""
        self.held: list[asyncio.Handle] = []
        """What was due while it was stopped."""
        self.tasks: dict[asyncio.Task[Any], None] = {}  # Any: whatever they return

    def context(self) -> contextvars.Context:
        """Where its code runs; a copy for each that is started from outside."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return context

    def die(self) -> None:
        """Nothing of it runs any more."""
        self.is_alive = self.is_running = False
        self.held.clear()
        for task in self.tasks:
            # asyncio complains of tasks that end unfinished; these do so by intention.
            setattr(task, "_log_destroy_pending", False)  # noqa: B010  # no other way, and no stub knows it

    def bury(self) -> None:
        """Let go of what its tasks hold. Their code may see it, and nobody listens to it any more."""
        for task in self.tasks:
            coroutine = task.get_coro()
            if not task.done() and isinstance(coroutine, types.CoroutineType):
                _close(coroutine)
        self.tasks.clear()


def _close(outermost: types.CoroutineType[Any, Any, Any]) -> None:  # Any: as above
    """The innermost first: what its `finally` blocks wait for would be left behind by those around it."""
    chain = [outermost]
    while isinstance(chain[-1].cr_await, types.CoroutineType):
        chain.append(
            cast("types.CoroutineType[Any, Any, Any]", chain[-1].cr_await)
        )  # Any: as above
    for coroutine in reversed(chain):
        for _ in range(_WAITS_MAX):
            with contextlib.suppress(BaseException):
                coroutine.close()
            if coroutine.cr_frame is None:
                break


_WAITS_MAX: Final = 100

CURRENT: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar(
    "process", default=None
)
"""Whose code runs; None: the world's own."""
