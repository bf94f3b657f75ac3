"""An event loop for a command's coroutine: uvloop's where it is installed, else asyncio's.

A signal that comes while the loop is made waits until it can be closed: it ends the command as at any other time.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


def run_async(
    main: Coroutine[Any, Any, T],
) -> T:  # Any: what a coroutine yields is the loop's affair
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        with _held_back():
            runner.get_loop()
        return runner.run(main)
    finally:
        runner.close()
        main.close()  # a signal may come before the loop has taken it; otherwise this does nothing


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@contextlib.contextmanager
def _held_back() -> Generator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
