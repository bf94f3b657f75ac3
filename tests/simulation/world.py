"""A simulated world: one real broker on a bad disk, real clients on other hosts, a bad network, one number for all.

Everything runs on one `SimLoop`; nothing waits for a clock and nothing depends on the machine. What goes wrong is done
by the methods here, by a story (see `stories`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from danubius.app.options import StandaloneOptions
from danubius.app.ports import Ports
from danubius.app.standalone import Standalone
from danubius.broker.config import BrokerConfig
from danubius.errors import StorageFailed, StorageFull
from danubius.ledger.config import LedgerConfig
from danubius.model.limits import KIB, MIB
from danubius.runtime import ambient
from danubius.runtime.clock import SystemClock
from danubius.sim.disk import PowerLost, SimFiles
from danubius.sim.loop import SimLoop
from danubius.sim.net import SimNet
from danubius.sim.workers import LoopThreads
from danubius.wal.config import JournalConfig
from simulation.books import SubscriptionBook, TopicBook

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from danubius.sim.processes import Process
    from danubius.sim.trace import Trace

HOST: Final = "broker"
PORT: Final = 6651
URL: Final = f"danube://{HOST}:{PORT}"
DATA: Final = Path("/data")
WALL_NS: Final = 1_700_000_000 * 10**9
RESTART_S: Final = 1.0
"""A supervisor starts a broker that has ended again after this."""
STOP_S: Final = 60.0
"""A broker that is asked to ends within this."""

BROKER: Final = BrokerConfig(
    checkpoint_bytes=MIB,
    ack_journal_interval_ms=20,
    checkpoint_interval_ms=500,
    keepalive_ms=1000,
    handshake_timeout_ms=3000,
)
LEDGERS: Final = LedgerConfig(
    cache_bytes=64 * KIB,
    flush_bytes=4 * KIB,
    dirty_bytes_max=32 * KIB,
    flush_interval_ms=50,
    flush_age_ms=500,
    block_bytes=4 * KIB,
    ledger_bytes_max=16 * KIB,
)
JOURNAL: Final = JournalConfig(file_bytes=32 * KIB, files_max=64, fill_bytes=0)


class World:
    """See the module."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.loop = SimLoop(seed, end_s=3600.0)
        self.loop.trace = trace
        self.loop.set_exception_handler(self._crashed)
        self.net = SimNet(self.loop, random.Random(f"{seed} net"))
        self.loop.network = self.net
        self.files = SimFiles(seed=seed)
        self.files.on_power_loss = self._power_lost
        self.dice = random.Random(f"{seed} story")
        self.threads = LoopThreads(self.loop, random.Random(f"{seed} threads"))
        self.topics: dict[str, TopicBook] = {}
        self.subscriptions: dict[str, SubscriptionBook] = {}
        self.story: list[str] = []
        """What was done to it, and when."""
        self.lives = 0
        self.has_served = asyncio.Event()
        self.disk_trouble_s: float | None = None
        """Since when the disk may not have synced what it should."""
        self.is_resting = False
        """Everything that was to be sent is; who receives goes on."""
        self._broker: Process | None = None
        self._standalone: Standalone | None = None
        self._is_wanted = True
        self._clients: dict[str, tuple[Process, Callable[[], Coroutine[Any, Any, None]]]] = {}
        self._failure: asyncio.Future[None] = self.loop.create_future()

    # ------------------------------------------------------------ running

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """To the end of the story, or the first thing that must not happen."""
        own = random.Random(f"{self.seed} chance")
        with (
            _without_collections(),
            ambient.replaced(
                self.loop.monotonic_ns, lambda: WALL_NS + self.loop.monotonic_ns(), own
            ),
        ):
            try:
                self.loop.run_until_complete(self._watch(story))
            finally:
                self.loop.close()

    async def _watch(self, story: Coroutine[Any, Any, None]) -> None:
        told = self.loop.create_task(story, name="story")
        await asyncio.wait({told, self._failure}, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            told.cancel()
            await asyncio.wait({told})
            self._failure.result()
        told.result()

    def fail(self, error: BaseException) -> None:
        """Something happened that never may."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def _crashed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, PowerLost):
            self.fail(error or AssertionError(context.get("message")))

    def note(self, *words: object) -> None:
        line = f"{self.loop.time() - 1000:8.3f}  {' '.join(map(str, words))}"
        self.story.append(line)
        if self.loop.trace is not None:
            self.loop.trace.add(line)

    # ------------------------------------------------------------ books

    def topic(self, name: str) -> TopicBook:
        return self.topics.setdefault(name, TopicBook(name))

    def subscription(self, topic: str, name: str) -> SubscriptionBook:
        book = self.subscriptions.get(name)
        if book is None:
            book = SubscriptionBook(self.topic(topic), name, self.loop.time)
            self.subscriptions[name] = book
        return book

    # ------------------------------------------------------------ the broker

    @property
    def is_serving(self) -> bool:
        return self._standalone is not None

    def start_broker(self) -> None:
        """A new life, unless one goes on."""
        is_alive = self._broker is not None and self._broker.is_alive
        if is_alive or not self._is_wanted or not self.net.is_up(HOST):
            return
        self.lives += 1
        self._broker = process = self.loop.begin(HOST)
        task = self.loop.run_in(process, self._open(), "broker")
        task.add_done_callback(lambda task: self._opened(process, task))

    async def _open(self) -> Standalone:
        standalone = Standalone(
            StandaloneOptions(DATA, host=HOST, port=PORT, http_port=None),
            ports=Ports(self.files, SystemClock(), self.threads, lambda: 1024),
            broker_config=BROKER,
            ledger_config=LEDGERS,
            journal_config=JOURNAL,
        )
        await standalone.start()
        return standalone

    def _opened(self, process: Process, task: asyncio.Task[Standalone]) -> None:
        error = task.exception()
        if not process.is_alive or isinstance(error, PowerLost):
            return
        if error is None:
            self.note("the broker serves, life", self.lives)
            self._standalone = task.result()
            self.has_served.set()
        elif isinstance(error, StorageFailed | StorageFull):
            self.note("the broker does not start:", error)
            self.kill_broker(RESTART_S)
        else:
            self.fail(error)

    def kill_broker(self, back_s: float) -> None:
        """A kill -9: what was written stays."""
        if self._end_broker():
            self.note("kill -9 of the broker, back in", f"{back_s:.3f}")
            self.net.hang_up(HOST)
            self.files.kill()
            self.loop.call_later(back_s, self.start_broker, context=self.net.context)

    def power_off(self, back_s: float) -> None:
        """The machine of the broker is off: what was not synced may be gone."""
        self.note("power loss, back in", f"{back_s:.3f}")
        self._end_broker()
        self.net.turn_off(HOST)
        self._crash_disk(back_s)

    def power_off_inside(self, steps: int) -> None:
        """The same in the middle of what the disk does, so many changes later."""
        self.note("power loss at the disk's change", steps)
        self.files.lose_power_after(steps)

    def _power_lost(self) -> None:
        self.note("power loss, by the disk")
        self._end_broker()
        self.net.turn_off(HOST)
        # Not here: whoever was at work at the disk is still inside of it.
        self.loop.call_soon(self._crash_disk, RESTART_S, context=self.net.context)

    def _crash_disk(self, back_s: float) -> None:
        now_s = self.loop.time()
        since_s = now_s if self.disk_trouble_s is None else self.disk_trouble_s
        self.disk_trouble_s = None
        for book in self.subscriptions.values():
            book.power_lost(since_s)
        self.files.crash(self.dice.randrange(2**32))
        self.loop.call_later(back_s, self._power_back, context=self.net.context)

    def _power_back(self) -> None:
        self.net.turn_on(HOST)
        self.start_broker()

    async def restart_broker(self) -> None:
        """An orderly end, and the next life."""
        await self.stop_broker()
        self._is_wanted = True
        self.start_broker()

    async def stop_broker(self) -> None:
        process, standalone = self._broker, self._standalone
        if process is None or standalone is None or not process.is_alive:
            return
        self.note("an orderly end of the broker")
        self._standalone = None
        self._is_wanted = False
        stopped = self.loop.run_in(process, standalone.stop(), "stop")
        await asyncio.wait({stopped}, timeout=STOP_S)
        self._is_wanted = True
        if not process.is_alive:
            return  # something else ended it meanwhile, which also begins the next life
        if not stopped.done():
            raise AssertionError("the broker does not stop")
        if not isinstance(stopped.exception(), PowerLost):
            stopped.result()
        self._end_broker()
        self.net.hang_up(HOST)
        self.files.kill()

    def _end_broker(self) -> bool:
        self._standalone = None
        if self._broker is None or not self._broker.is_alive:
            return False
        self._broker.die()
        return True

    # ------------------------------------------------------------ trouble

    def fail_disk(
        self, operation: str, times: int, error: type[StorageFailed | StorageFull]
    ) -> None:
        self.note("the disk fails", times, operation, error.__name__)
        self.trouble()
        self.files.fail(operation, after=self.dice.randrange(3), times=times, error=error)

    def trouble(self) -> None:
        if self.disk_trouble_s is None:
            self.disk_trouble_s = self.loop.time()

    async def pause_broker(self, pause_s: float) -> None:
        """SIGSTOP, and SIGCONT."""
        process = self._broker
        if process is not None and process.is_alive:
            self.note("the broker stands still for", f"{pause_s:.3f}")
            self.trouble()
            self.loop.pause(process)
            await asyncio.sleep(pause_s)
            self.loop.go_on(process)

    def heal(self) -> None:
        """Nothing goes wrong from here on."""
        self.note("everything heals")
        self.files.heal()
        self.files.capacity_bytes = None
        self.threads.slowness = 0.0
        self.net.mend_all()
        for host in self._clients:
            for link in self.net.links(host, HOST):
                link.loss = 0.0
                link.delay_s = 0.0005
        self.start_broker()

    # ------------------------------------------------------------ clients

    @property
    def hosts(self) -> list[str]:
        return list(self._clients)

    def start_client(self, host: str, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
        process = self.loop.begin(host)
        self._clients[host] = process, program
        task = self.loop.run_in(process, program(), host)
        task.add_done_callback(lambda task: self._client_ended(process, task))

    def _client_ended(self, process: Process, task: asyncio.Task[None]) -> None:
        if process.is_alive and (error := task.exception()) is not None:
            self.fail(error)

    async def kill_client(self, host: str, back_s: float) -> None:
        process, program = self._clients[host]
        if process.is_alive:
            self.note("kill -9 of", host)
            process.die()
            self.net.hang_up(host)
            await asyncio.sleep(back_s)
            self.start_client(host, program)

    async def power_off_client(self, host: str, off_s: float) -> None:
        """Its connections are gone without a word: the broker has to find out."""
        process, program = self._clients[host]
        if process.is_alive:
            self.note("power loss of", host, "for", f"{off_s:.3f}")
            process.die()
            self.net.turn_off(host)
            await asyncio.sleep(off_s)
            self.net.turn_on(host)
            self.start_client(host, program)


@contextlib.contextmanager
def _without_collections() -> Generator[None]:
    """What a garbage collection ends would end in the middle of a history, sooner or later as memory has it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
