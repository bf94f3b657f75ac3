"""An event loop whose time is a number: the twin of the real one, without a selector, without threads, without a wait.

- Callbacks run in the order of `call_soon`, timers in the order of their moments, and of those of one moment in that of
  a heap that only knows what was put into it. Nothing else decides, so a seed is a history.
- A turn costs `TURN_S`. When nothing is ready, time jumps to the next timer.
- A loop that waits for what cannot come any more raises `Deadlock`; one that goes on beyond its bounds, `Endless`.
- What would run on a thread of an executor runs here, after a moment, and is answered after another one.
- Code belongs to a simulated process (see `processes`); that of a dead one does not run.
- The network is a `sim.net.SimNet`; without one there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from danubius.sim.processes import CURRENT, Process

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Coroutine, Generator

    from danubius.sim.trace import Trace

    Factory = Callable[[], asyncio.BaseProtocol]

T = TypeVar("T")

TURN_S: Final = 20e-6
"""What a turn of the loop takes: whoever polls instead of sleeping comes to an end."""
CALL_S: Final = 2e-3
"""What a call on a thread takes, at the most, and so much again until the loop hears of it."""
START_S: Final = 1000.0
END_S: Final = 24 * 3600.0
"""Of virtual time, from the start."""
TURNS_MAX: Final = 5_000_000
_LATER_MAX: Final = 500


class Call(NamedTuple):
    """What is to run, and whose it is."""

    handle: asyncio.Handle
    process: Process | None
    callback: object
    """For the trace: a handle does not say."""


class Deadlock(AssertionError):
    """Everything waits, and there is nothing left that could come."""


class Endless(AssertionError):
    """It does not come to an end within the bound of virtual time or of turns."""


class Network(Protocol):
    """What listens and dials for the loop; see `sim.net.SimNet`."""

    def listen(self, factory: Factory, host: str, port: int) -> Any: ...  # Any: stands for a Server

    async def dial(self, factory: Factory, host: str, port: int) -> tuple[Any, Any]: ...


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `network` is to be set before anybody listens or dials."""

    def __init__(self, seed: int = 0, *, end_s: float = END_S, turns_max: int = TURNS_MAX) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        """For what the loop itself leaves to chance."""
        self.network: Network | None = None
        self.trace: Trace | None = None
        """Told of every callback that runs."""
        self.turns = 0
        self.processes: list[Process] = []
        self._now_s = START_S
        self._end_s = START_S + end_s
        self._turns_max = turns_max
        self._soon: deque[Call] = deque()
        self._later: list[tuple[float, int, Call]] = []
        self._count = 0
        """Of timers: those of one moment run in the order in which they were made."""
        self._later_max = _LATER_MAX
        """At so many timers the cancelled ones are dropped."""
        self._posted: list[Call] | None = None
        """While code runs that stands for a thread's: what it posted to the loop."""

    # ------------------------------------------------------------ time

    def time(self) -> float:
        return self._now_s

    def monotonic_ns(self) -> int:
        """The same clock as `time`: with a real loop they are one as well."""
        return int(self._now_s * 1e9)

    # ------------------------------------------------------------ callbacks

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,  # Any: as asyncio has it
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        self._soon.append(Call(handle, process, callback))
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[..., object],
        *args: Any,  # Any: as asyncio has it
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """From what stands for a thread: the loop hears of it when that has had its time."""
        handle = asyncio.Handle(callback, args, self, context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        call = Call(handle, process, callback)
        (self._soon if self._posted is None else self._posted).append(call)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # Any: as asyncio has it
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,  # Any: as asyncio has it
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        self._count += 1
        if len(self._later) > self._later_max:
            self._later = [entry for entry in self._later if not entry[2].handle.cancelled()]
            heapq.heapify(self._later)
            self._later_max = _LATER_MAX + 2 * len(self._later)
        heapq.heappush(self._later, (when, self._count, Call(timer, process, callback)))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio's: it would count them."""

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride]  # generators were coroutines once
        self,
        coro: Coroutine[Any, Any, T],  # Any: as asyncio has it
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **_others: object,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=str(name or "task"), context=context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop)
        return task

    # ------------------------------------------------------------ a turn

    def _run_once(self) -> None:
        """Asyncio's: run what is ready, once. `run_forever` calls it."""
        soon = self._soon
        self._take_due()
        for _ in range(len(soon)):
            handle, process, callback = soon.popleft()
            if handle.cancelled():
                continue
            if process is not None and not process.is_running:
                if process.is_alive:
                    process.held.append(handle)
                continue
            if self.trace is not None:
                host = "-" if process is None else process.host
                self.trace.add(f"{self._now_s:.9f}", host, _name_of(callback))
            handle._run()  # noqa: SLF001  # there is no public way

    def _take_due(self) -> None:
        """A turn begins: time passes, and timers become ready."""
        soon, later = self._soon, self._later
        self._now_s += TURN_S
        while later and later[0][2].handle.cancelled():
            heapq.heappop(later)
        if not soon:
            if not later:
                raise Deadlock(f"everything waits for ever, since {self._now_s - START_S:.3f} s")
            self._now_s = max(self._now_s, later[0][0])
        self.turns += 1
        if self._now_s > self._end_s or self.turns > self._turns_max:
            raise Endless(f"no end after {self._now_s - START_S:.3f} s and {self.turns} turns")
        while later and later[0][0] <= self._now_s:
            soon.append(heapq.heappop(later)[2])

    # ------------------------------------------------------------ what stands for threads

    @contextlib.contextmanager
    def on_a_thread(self) -> Generator[list[Call]]:
        """What is posted to the loop inside is gathered, to be given to `release` when the thread has had its time."""
        before, self._posted = self._posted, []
        try:
            yield self._posted
        finally:
            self._posted = before

    def release(self, posted: list[Call]) -> None:
        """Let the loop hear of what was posted."""
        self._soon.extend(posted)
        posted.clear()

    def run_in_executor(
        self,
        executor: object,  # noqa: ARG002  # there are no threads to choose among
        func: Callable[..., T],
        *args: Any,  # Any: as asyncio has it
    ) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = self.create_future()

        def run() -> None:
            with self.on_a_thread() as posted:
                try:
                    result = func(*args)
                except BaseException as error:  # noqa: BLE001  # as an executor does: it is the caller's
                    settle = lambda error=error: answer.set_exception(error)  # noqa: E731
                else:
                    settle = lambda: answer.set_result(result)  # noqa: E731
            self.call_later(self.dice.uniform(0, CALL_S), finish, posted, settle)

        def finish(posted: list[Call], settle: Callable[[], None]) -> None:
            self.release(posted)
            if not answer.done():
                settle()

        self.call_later(self.dice.uniform(0, CALL_S), run)
        return answer

    # ------------------------------------------------------------ the network

    async def create_server(  # pyright: ignore[reportIncompatibleMethodOverride]  # of its ways, the one in use
        self,
        protocol_factory: Factory,
        host: str,
        port: int,
        *,
        backlog: int = 100,  # noqa: ARG002  # nobody is kept waiting
    ) -> Any:  # stands for a Server
        assert self.network is not None, "this world has no network"
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(  # pyright: ignore[reportIncompatibleMethodOverride]  # of its ways, the one in use
        self, protocol_factory: Factory, host: str, port: int
    ) -> tuple[Any, Any]:  # what the factory makes is the caller's to know
        assert self.network is not None, "this world has no network"
        return await self.network.dial(protocol_factory, host, port)

    # ------------------------------------------------------------ processes

    def begin(self, host: str) -> Process:
        """A new process on a host."""
        process = Process(host)
        self.processes.append(process)
        return process

    def run_in(
        self, process: Process, coro: Coroutine[Any, Any, T], name: str = "main"
    ) -> asyncio.Task[T]:
        """Start a process's code."""
        return self.create_task(coro, name=name, context=process.context())

    def pause(self, process: Process) -> None:
        """Stop it as a SIGSTOP does: its time goes on, and it does not see it."""
        process.is_running = False

    def go_on(self, process: Process) -> None:
        """What was due meanwhile happens now, all at once."""
        if process.is_alive:
            process.is_running = True
            held, process.held = process.held, []
            for handle in held:
                self._soon.append(Call(handle, process, handle))

    def close(self) -> None:
        for process in self.processes:
            process.die()
            process.bury()
        self._soon.clear()
        self._later.clear()
        super().close()


def _name_of(callback: object) -> str:
    """The same in every run: no address in it."""
    name = getattr(callback, "__qualname__", None)
    return name if isinstance(name, str) else type(callback).__name__
