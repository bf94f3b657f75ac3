"""An event loop on a thread of its own, and how other threads hand it work: what the blocking client stands on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from danubius.client.connection.forking import FORKED, disown_after_fork
from danubius.errors import ClientClosed, DanubiusError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

_JOIN_TIMEOUT_S: Final = 10.0
_CANCEL_TIMEOUT_S: Final = 5.0

ResultT = TypeVar("ResultT")


class LoopThread:
    """An event loop on a thread of its own.

    Nobody waits forever: what is handed over before `stop` runs to its end or is cancelled, and nothing is taken later.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = (
            threading.Lock()
        )  # guards _is_stopping against calls that are being handed over
        self._is_stopping = False
        self._is_forked = False
        disown_after_fork(self)
        # A daemon: a program that forgets to close its client must still be able to end.
        self._thread = threading.Thread(target=self._serve, name="danubius", daemon=True)
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def disown(self) -> None:
        """In a child process: threads are not forked, so nothing that is handed over here would ever be done."""
        self._is_forked = True

    def check_process(self) -> None:
        """Raise ClientClosed in a child of the process that this was made in."""
        if self._is_forked:
            raise ClientClosed(FORKED)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_all())
        finally:
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine there and wait for it; an interrupt here cancels it."""
        if self._is_forked:  # before the lock, which a thread that is not here may hold for ever
            work.close()
            raise ClientClosed(FORKED)
        with self._lock:
            if self._is_stopping:
                work.close()
                raise ClientClosed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._is_stopping:
                raise ClientClosed("the client was closed") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def run_closing(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what closes something; the end of the whole client has closed it already, a child has nothing open."""
        try:
            self.run(work)
        except ClientClosed:
            if not self._is_stopping and not self._is_forked:
                raise

    def post(self, callback: Callable[[], None]) -> None:
        """Have a callback called there, soon."""
        self.check_process()
        with self._lock:
            if self._is_stopping:
                raise ClientClosed("the client is closed")
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        if self._is_forked:
            return
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT_S)


async def _cancel_all() -> None:
    """Cancel what still runs on this loop, and see it end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Mailbox:
    """Calls for the loop's thread, in order, handed over together: waking that thread is what costs."""

    __slots__ = ("_calls", "_is_posted", "_loop")

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._is_posted = False

    def put(self, call: Callable[[], None]) -> None:
        self._loop.check_process()
        self._calls.append(call)
        if not self._is_posted:
            self._is_posted = True
            try:
                self._loop.post(self._deliver)
            except ClientClosed:
                self._is_posted = False  # the next call is refused as well, and not left lying here
                self._calls.clear()
                raise

    def _deliver(self) -> None:
        # First the flag: a call that is put from here on is either seen below or posts anew.
        self._is_posted = False
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except DanubiusError as error:
                # It was checked when it was put: what it was for has ended since, and the next call there says so.
                log.debug("too late", extra={"reason": error.message})
            except Exception:  # those behind it must not suffer
                log.exception("a posted call failed")
