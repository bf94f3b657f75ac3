"""An event loop for a command's coroutine: uvloop's where it is installed, else asyncio's.

A signal that comes while the loop and the coroutine are made waits until both can be closed: it ends the command as at
any other time, and nothing else is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

P = ParamSpec("P")
T = TypeVar("T")

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


def run_async(
    main: Callable[P, Coroutine[Any, Any, T]],  # Any: what a coroutine yields is the loop's affair
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call it on a loop of its own, and wait for its end."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    coroutine: Coroutine[Any, Any, T] | None = None
    try:
        with _held_back():
            runner.get_loop()
            coroutine = main(*args, **kwargs)
        return runner.run(coroutine)
    finally:
        runner.close()
        if coroutine is not None:
            coroutine.close()  # if the loop has never taken it; otherwise this does nothing


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@contextlib.contextmanager
def _held_back() -> Generator[None]:
    """Not by the thread's mask: the kernel would give them to another thread, and Python to this one all the same."""
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}
    try:
        for number in _ENDING if threading.current_thread() is threading.main_thread() else ():
            before[number] = signal.getsignal(number)
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
