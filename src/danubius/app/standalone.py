"""The composition root of a standalone broker: built here by hand, top to bottom, and taken down in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.app.diskless import DisklessHome
from danubius.app.diskless import ledger_config as diskless_ledger_config
from danubius.app.grpc_ports import launch_grpc, open_grpc
from danubius.app.journal_probe import JournalProbe
from danubius.app.ledger_stores import open_ledger_store
from danubius.app.loop_lag import LoopLag
from danubius.app.metrics import Metrics
from danubius.app.options import dialable, http_hosts
from danubius.app.options import ledger_config as scaled_ledger_config
from danubius.app.ports import Ports
from danubius.app.reload import Reload
from danubius.app.tiering import check_owner, open_tier
from danubius.broker.appliers import APPLIERS
from danubius.broker.config import BrokerConfig
from danubius.broker.data_directory import JOURNAL, SNAPSHOT, DataDirectory
from danubius.broker.node import Node
from danubius.client.version import VERSION
from danubius.edge.http import HealthReport, HttpServer, build_app, make_server
from danubius.edge.native.binary import BinaryEdge
from danubius.edge.rest.desk import Desk
from danubius.edge.rest.measuring import RequestFigures
from danubius.edge.rest.serving import rest_routes
from danubius.errors import BrokerReplaced, DataDirectoryDamaged, InvalidArgument
from danubius.ledger.leftovers import find_leftovers
from danubius.ledger.storage import LedgerStorage
from danubius.runtime import ambient
from danubius.runtime.listening import EXPOSED, is_exposed
from danubius.runtime.privacy import is_open_to_others
from danubius.session.door import Door
from danubius.shard.recovery.replay import Recovery
from danubius.shard.recovery.survey import survey_state
from danubius.shard.shard import Shard
from danubius.shard.state.checkpoint import Checkpointer
from danubius.shard.state.facts import BARRIER
from danubius.tier.object_journal import ObjectJournal
from danubius.wal.config import JournalConfig
from danubius.wal.journal import Journal
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.app.options import StandaloneOptions
    from danubius.app.reload import Configured
    from danubius.edge.grpc.edge import GrpcEdge
    from danubius.edge.grpc.front_process import Front
    from danubius.errors import DanubiusError
    from danubius.ledger.config import LedgerConfig
    from danubius.ledger.store import LedgerStore
    from danubius.shard.features.offload.offloading import Tier
    from danubius.shard.recovery.survey import Survey
    from danubius.shard.state.tokens import OnDone
    from danubius.wal.ports import JournalPort, SnapshotPort

    Post = Callable[[Callable[[], None]], None]

CHECKPOINT_TIMEOUT_S: Final = 20.0
"""Starting and stopping wait this long for a checkpoint; without it the next start only replays more."""
DRAIN_TIMEOUT_S: Final = 3.0
"""Stopping waits this long for connections to end."""

LEDGER_FILES_MAX: Final = 16_384
"""Ledger files kept open for writing; the other half of what the system allows is for connections."""

log = logging.getLogger(__name__)


class _Parts(NamedTuple):
    """What a broker stands on."""

    journal: JournalPort
    snapshots: SnapshotPort
    store: LedgerStore
    tier: Tier | None
    survey: Survey


class Standalone:
    """A broker process's insides: start, serve, stop."""

    def __init__(  # the outside, and one keyword for each part's settings
        self,
        options: StandaloneOptions,
        *,
        ports: Ports | None = None,
        broker_config: BrokerConfig | None = None,
        ledger_config: LedgerConfig | None = None,
        journal_config: JournalConfig | None = None,
        configured: Configured | None = None,
    ) -> None:
        self._options = options
        self._ports = ports or Ports()
        self._files = self._ports.files
        self._clock = self._ports.clock
        self._broker_config = broker_config or BrokerConfig()
        self._ledger_config = ledger_config or scaled_ledger_config(options.cache_bytes)
        self._journal_config = journal_config or JournalConfig()
        self._configured = configured
        self._running = contextlib.ExitStack()
        """What is to be ended, the last started first."""
        self._home: DataDirectory | DisklessHome
        self._journal: JournalPort
        self._ledgers: LedgerStorage
        self._checkpointer: Checkpointer
        self._http: HttpServer | None = None
        self._rest: Desk | None = None
        self._front: Front | None = None
        """Of the gRPC edge, until that has it."""
        self._grpc: GrpcEdge | None = None
        self._node: Node
        self.on_replaced: Callable[[DanubiusError], None] = _ignore
        """Called when another broker has taken the store of this one, which has to end."""
        self.reload: Reload | None = None
        """How settings change while it runs; None: whoever built this keeps them."""
        self.shard: Shard
        self.edge: BinaryEdge
        self.port = 0
        self.http_port = 0

    async def start(self) -> None:
        """Take the data directory, or the store in place of it; recover, then listen."""
        loop = asyncio.get_running_loop()
        if self._options.diskless.enabled:
            self._home = await asyncio.to_thread(DisklessHome.open, self._options, self._files)
        else:
            self._home = DataDirectory.open(
                self._options.data_dir, self._files, f"broker-{ambient.token(6).hex()}"
            )
        self._running.callback(self._home.release)
        self._warn()
        try:
            if self._options.grpc is not None:
                self._front = launch_grpc(self._options)
            await self._recover(loop)
            await self._listen(loop)
            # Nothing can refuse this start any more: what the state has let go of may go.
            self._ledgers.settle_in()
            self._node.start_offloading(self._checkpointer)
            self._running.callback(self._node.stop_offloading)
        except BaseException:
            # Threads that are left running would keep the process from ending.
            await self._close_grpc()
            self._running.close()
            raise

    def _warn(self) -> None:
        """Say what whoever started this may not have meant."""
        if is_exposed(self._options.host):
            facts = {"host": self._options.host, "danger": EXPOSED}
            log.warning("this broker is open to the network", extra=facts)
        home = self._home
        if isinstance(home, DataDirectory) and is_open_to_others(home.path):
            log.warning(
                "other users of this machine may look into the data directory: chmod go= shuts them out",
                extra={"directory": home.path},
            )

    async def _recover(self, loop: asyncio.AbstractEventLoop) -> None:
        def post(callback: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(callback)

        parts = await self._open_parts(loop, post)
        self._journal, snapshots, tier = parts.journal, parts.snapshots, parts.tier
        store, cold = (parts.store, None) if tier is None else (tier.store, tier.store)
        self._ledgers = LedgerStorage(
            self._ledger_config, store, post, self._clock, self._ports.spawn, cold=cold
        )
        self._running.callback(self._ledgers.close)
        self.shard = Shard(
            self._broker_config,
            self._clock,
            loop,
            self._journal,
            self._ledgers,
            self._home.epoch,
            APPLIERS,
        )
        self.shard.broker_id = self._home.broker_id
        self._node = Node(self.shard, tier)
        self._node.about.broker_id = self._home.broker_id
        if self._configured is not None:
            self._node.about.settings = self.reload = Reload(self.shard, self._configured)
        self._ledgers.on_relieved = self.shard.pressure.relieve
        position = await Recovery(self.shard, snapshots, parts.survey).run()
        self._journal.start(
            post, self.shard.on_committed, self.shard.on_failed, defer=loop.call_soon
        )
        self._running.callback(self._journal.close)
        self._node.start()
        if isinstance(self._journal, ObjectJournal):
            self._watch(self._journal)
        self._checkpointer = Checkpointer(self.shard, snapshots, self._ports.spawn)
        self._checkpointer.start(position)
        self._running.callback(self._checkpointer.stop)
        probe = JournalProbe(self.shard)
        probe.start()
        self._running.callback(probe.stop)
        # Before anyone is served, or a broker that dies young again and again would pile up journal files.
        await self._first_checkpoint()

    async def _first_checkpoint(self) -> None:
        """Make one, and write down that from now on there is a journal, and a snapshot."""
        home = self._home
        if not isinstance(home, DataDirectory) or home.holds == SNAPSHOT:
            await self._checkpoint()
            await self._make_room()
            return
        if await self._has_journal():
            home.mark(JOURNAL)
        await self._checkpoint()
        if home.holds == JOURNAL and self._checkpointer.checkpoints:
            home.mark(SNAPSHOT)

    async def _has_journal(self) -> bool:
        """Whether a record is durable: then there is a file to be missed."""
        return await self._succeeds(lambda finish: self.shard.commit(BARRIER, finish))

    async def _make_room(self) -> None:
        """A checkpoint frees nothing that the one before needs; a journal without room takes a second."""
        # In turn behind the trim, which says how full it is now.
        if await self._succeeds(self._journal.sync) and self._journal.is_nearly_full:
            await self._checkpoint()

    async def _succeeds(self, act: Callable[[OnDone], None]) -> bool:
        """Whether it does, within reason."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def finish(error: DanubiusError | None) -> None:
            if not done.done():
                done.set_result(error is None)

        act(finish)
        try:
            async with asyncio.timeout(CHECKPOINT_TIMEOUT_S):
                return await done
        except TimeoutError:
            return False

    async def _open_parts(self, loop: asyncio.AbstractEventLoop, post: Post) -> _Parts:
        home, options, files = self._home, self._options, self._files
        if isinstance(home, DisklessHome):
            self._ledger_config = diskless_ledger_config(self._ledger_config)
            journal = home.make_journal(loop)
            try:
                survey = await asyncio.to_thread(
                    survey_state, home.snapshots, journal, home.broker_id
                )
            except DataDirectoryDamaged as damage:
                raise await asyncio.to_thread(home.explain, damage) from None
            return _Parts(journal, home.snapshots, home.ledgers, None, survey)
        ports = self._ports
        journal = Journal(
            self._journal_config, files, home.journal, spawn=ports.spawn, clock=ports.clock
        )
        snapshots = SnapshotStore(files, home.snapshots)
        survey = await asyncio.to_thread(survey_state, snapshots, journal, home.broker_id)
        store = await asyncio.to_thread(self._open_store, home, survey)
        tier = open_tier(options.tier, self._ledger_config, home, store, post)
        return _Parts(journal, snapshots, store, tier, survey)

    def _open_store(self, home: DataDirectory, survey: Survey) -> LedgerStore:
        """The ledgers of a directory; it is taken up as soon as nothing is left that could refuse it."""
        settings = self._options.ledger_store
        open_files_max = min(LEDGER_FILES_MAX, self._ports.raise_open_files() // 2)
        open_store = functools.partial(
            open_ledger_store, settings, home, self._files, open_files_max
        )
        if settings.kind == "local":
            store = open_store()
            home.check(survey, has_ledgers=bool(store.list()))
            home.check_ledgers(survey)
            leftovers = find_leftovers(store, survey.ledger_state)
            home.check_age(survey, store, leftovers)
            epoch = max([survey.epoch, *(one.epoch for one in leftovers)])
            check_owner(self._options.tier, home, epoch)
            home.take_up(epoch)
            return store
        home.check(survey, has_ledgers=False)
        check_owner(self._options.tier, home, survey.epoch)
        home.take_up(survey.epoch)
        try:
            return open_store()
        except (BrokerReplaced, DataDirectoryDamaged, InvalidArgument):
            # What is not sure to have failed may have claimed the store for this epoch.
            home.put_back()
            raise

    def _watch(self, journal: ObjectJournal) -> None:
        """Hear of a broker that takes the place of this one, also while nothing is written."""
        journal.on_replaced = lambda error: self.on_replaced(error)
        self.shard.ticks.add(self._options.diskless.watch_ms, journal.watch)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        options = self._options
        door = Door(self._node)
        self.edge = BinaryEdge(door, loop, self._home.broker_id)
        self.port = await self.edge.open(options.host, options.port, dialable(options.host))
        self._introduce()
        if options.http_port is not None:
            await self._listen_http(loop, door, options.http_port)
        front, self._front = self._front, None
        if front is not None:
            self._grpc = await open_grpc(
                front, door, options, self._home.path, self._files, self.http_url
            )

    async def _listen_http(self, loop: asyncio.AbstractEventLoop, door: Door, port: int) -> None:
        options = self._options
        lag = LoopLag(loop)
        lag.start()
        self._running.callback(lag.stop)
        figures = RequestFigures()
        metrics = Metrics(
            self._node, self.edge, self._checkpointer, lag, figures, lambda: self._grpc
        )
        self._rest = Desk(door)
        routes = rest_routes(self._rest, VERSION)
        report = HealthReport(self._problems, self._facts)
        app = build_app(report, metrics.render, routes, figures, http_hosts(options))
        self._http = make_server(app, options.host, port)
        self.http_port = await self._http.open()

    def _introduce(self) -> None:
        about = self._node.about
        about.version = VERSION
        about.url = self.edge.advertised_url
        about.started_ms = self._clock.wall_us() // 1000
        about.connections = lambda: len(self.edge.connections)

    @property
    def url(self) -> str:
        return self.edge.advertised_url

    @property
    def http_url(self) -> str:
        """Empty: HTTP is not served."""
        if self._http is None:
            return ""
        return f"http://{dialable(self._options.host)}:{self.http_port}"

    @property
    def warning(self) -> str:
        """For below the line that says it is ready; empty: there is none."""
        return (
            "open to the network, not encrypted, without log-in"
            if is_exposed(self._options.host)
            else ""
        )

    @property
    def place(self) -> str:
        """Where the data are."""
        home = self._home
        return home.url if isinstance(home, DisklessHome) else str(home.path.resolve())

    def _problems(self) -> list[str]:
        failures = [self.shard.journal_failure, self._ledgers.failure]
        problems = [str(failure) for failure in failures if failure is not None]
        if (problem := self._checkpointer.problem) is not None:
            problems.append(problem)
        return problems

    def _facts(self) -> dict[str, object]:
        return {
            "broker": self._home.broker_id,
            "epoch": self._home.epoch,
            "topics": len(self.shard.topics),
            "connections": len(self.edge.connections),
            "abandoned_subscriptions": self._node.retention.abandoned.count,
            **({"exposed": EXPOSED} if is_exposed(self._options.host) else {}),
            **(self._grpc.facts() if self._grpc is not None else {}),
            **self._clock_facts(),
            **self._tier_facts(),
            **({"unexplained": self._ledgers.unexplained} if self._ledgers.unexplained else {}),
            **({"store": self._home.url} if isinstance(self._home, DisklessHome) else {}),
        }

    def _clock_facts(self) -> dict[str, object]:
        """A clock that jumped is somebody's business, and no reason to send clients away."""
        jump_s = self.shard.ages.jump_s
        return {"clock_ahead_s": round(jump_s)} if jump_s else {}

    def _tier_facts(self) -> dict[str, object]:
        """A broker without its cold storage serves what it can: that is a fact, and no reason to send clients away."""
        offloading = self._node.offloading
        if offloading is None:
            return {}
        return {"tier": offloading.url, "tier_problem": offloading.problem}

    async def stop(self) -> None:
        """Send everyone away, write down what is known, let go of the directory."""
        self.edge.close()
        await self._close_grpc()
        await self._close_http()
        await self._wait_for_connections()
        self.shard.acks.write()
        await self._checkpoint()
        self._running.close()
        log.info("stopped")

    async def abandon(self) -> None:
        """Let go without writing anything more, as after a failure of the disk."""
        self.edge.close()
        await self._close_grpc()
        await self._close_http()
        self._running.close()

    async def _close_grpc(self) -> None:
        if self._front is not None:
            await self._front.close()
        if self._grpc is not None:
            await self._grpc.close()

    async def _close_http(self) -> None:
        """Send those away who wait, let the others have their answers."""
        if self._rest is not None:
            self._rest.stop()
        if self._http is not None:
            await self._http.shutdown()
        if self._rest is not None:
            self._rest.close()

    async def _wait_for_connections(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self.edge.wait_closed()
        except TimeoutError:
            log.warning("connections cut off", extra={"count": len(self.edge.connections)})

    async def _checkpoint(self) -> None:
        """Make one now, and wait for it within reason."""
        if not await self._succeeds(self._checkpointer.run):
            log.warning("there is no checkpoint, or it takes long; going on without it")


def _ignore(error: DanubiusError) -> None:
    """Nobody asked to hear of it; it was logged."""
    del error
