"""Offloading: which ledgers go to the object store and leave the disk, step by step, each durable before the next.

For each ledger: object put and verified (on threads) -> `LedgerOffloaded` journaled -> when the topic's policies let
its files go: object looked at once more -> `LedgersReclaimed` journaled -> reads go to the object -> files deleted.
What dies between two steps is found by the next look, which plans from the ledgers as they are.

- The store is claimed at the start; another life there means that a copy of the data directory is in use, or that this
  broker is the old one: then nothing is stored or removed any more, and what is stored is served.
- Objects of ledgers that are gone are removed, as soon as their going is durable; what fails is tried again. Objects
  that no ledger explains are looked for after a start and every few hours.
- While the store fails, it is asked again after a pause that doubles; publishing goes on until `local_bytes_max`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from danubius.errors import DanubiusError, LedgerDamaged
from danubius.ledger.entry import LedgerRef
from danubius.ledger.managed import ManagedLedger
from danubius.runtime.slices import in_slices
from danubius.shard.features.offload.figures import OffloadFigures
from danubius.shard.features.offload.health import TierHealth
from danubius.shard.features.offload.local_room import LocalRoom
from danubius.shard.features.offload.orphans import is_explained, is_past, is_there
from danubius.shard.state.facts import LedgerOffloaded, LedgersReclaimed
from danubius.tier.core.courtesy import Traffic, upload_rate
from danubius.tier.core.planner import NOT_FORCED, Horizon, TopicView, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.ledger.entry import LedgerMeta, StoredObject
    from danubius.ledger.read_pool import ReadPool
    from danubius.model.ids import TopicId
    from danubius.shard.hosting.topic import Topic
    from danubius.shard.shard import Shard
    from danubius.shard.state.facts import Event
    from danubius.tier.config import TierConfig
    from danubius.tier.core.planner import TopicPlan
    from danubius.tier.offload import Owner, Removed, TierThreads
    from danubius.tier.tiered_store import TieredLedgerStore

Result = TypeVar("Result")

SLICES: Final = 10
"""A round over all topics takes this many looks."""
REMOVED_AT_ONCE: Final = 100
REMOVALS_MAX: Final = 100_000
"""Names that wait for removal; more are left to the search for orphans."""
NAMES_A_SLICE: Final = 500
"""Objects of a search that are looked at in one turn of the loop."""
HASTEN_MS: Final = 10_000
"""How often a checkpoint is asked for on behalf of ledgers that wait for one; if an operator waits, at every look."""
SET_ASIDE_MS: Final = 600_000
"""A ledger that is damaged, or whose file cannot be read, is tried again after this long."""

log = logging.getLogger(__name__)


class Checkpoints(Protocol):
    """The checkpointer, as far as it is needed here."""

    @property
    def trimmed_position(self) -> int: ...

    def hasten(self) -> None: ...


class Tier:
    """Cold storage as a broker is given it."""

    def __init__(
        self, config: TierConfig, store: TieredLedgerStore, threads: TierThreads, url: str
    ) -> None:
        self.config = config
        self.store = store
        self.threads = threads
        self.url = url


class Offloading:
    """One per broker that has an object store."""

    def __init__(self, shard: Shard, tier: Tier) -> None:
        self._shard = shard
        self._tier = tier
        self._threads = tier.threads
        self._work = tier.threads.work
        self._config = tier.config
        self.checkpoints: Checkpoints
        """Given when there is one, before `start`."""
        self.figures = OffloadFigures()
        self._room = LocalRoom(shard, self.figures, tier.config.local_bytes_max)
        self._health = TierHealth(tier.config, shard.clock, self.figures, tier.url)
        self.owner: Owner | None = None
        """Whose the store is, as far as it is known."""
        self.forced: dict[TopicId, int] = {}
        """Topics that an operator wants offloaded, and up to which offset."""
        self._due: list[TopicId] = []
        self._count = 0
        self._busy: dict[LedgerRef, str] = {}
        """Ledgers that something is being done about, and the names of their objects."""
        self._uploading = 0
        self._deferred: dict[TopicId, None] = {}
        """Topics that had more to upload than there was room for."""
        self._set_aside: dict[LedgerRef, int] = {}
        """Damaged ledgers, and when to try them again."""
        self._removals: dict[str, None] = {}
        self._is_asking = self._is_removing = self._is_searching = False
        self._round_at_ns = self._search_at_ns = self._hasten_at_ns = 0
        self._looked_ns = 0
        self._is_closed = False
        self._is_waiting = False
        """Whether something waits for a checkpoint, as far as was seen since the last was asked for."""
        tier.store.on_released = self._released

    # ------------------------------------------------------------ time

    def start(self) -> None:
        self._threads.start()
        self._shard.ticks.add(max(1, self._config.cycle_ms // SLICES), self.tick)
        self.tick()

    def close(self) -> None:
        """Give up what is under way: the next start finds it."""
        self._is_closed = True
        self._threads.close()

    def _submit(
        self,
        pool: ReadPool,
        work: Callable[[], Result],
        on_done: Callable[[Result | DanubiusError], None],
    ) -> None:
        def done(result: Result | DanubiusError) -> None:
            # What comes after the end finds the journal closed.
            if not self._is_closed:
                on_done(result)

        pool.submit(work, done)

    @property
    def is_ours(self) -> bool:
        return self.owner == self._work.place.owner

    @property
    def is_fenced(self) -> bool:
        return self.owner is not None and not self.is_ours

    def tick(self) -> None:
        """Look over one slice of the topics; at the start of a round, whose the store is."""
        if self._is_closed:
            return
        now_ns = self._shard.clock.monotonic_ns()
        self._set_pace(now_ns)
        self._room.look(self.problem)
        if not self._due and now_ns >= self._round_at_ns:
            self._round_at_ns = now_ns + self._config.cycle_ms * 1_000_000
            self.figures.finish_round()
            self._due = [t.id for t in self._shard.topics_by_id.values() if not t.parent]
            self._count = len(self._due) // SLICES + 1
            self._ask_owner()
        some = self._due[-self._count :]
        del self._due[-self._count :]
        for topic_id in some:
            self._look_at(topic_id, is_round=True)
        for topic_id in [one for one in self.forced if one not in some]:
            self._look_at(topic_id)
        self._hasten(now_ns)
        self._remove_some()
        self._search(now_ns)
        for ref in [ref for ref, at_ns in self._set_aside.items() if at_ns <= now_ns]:
            del self._set_aside[ref]

    def _set_pace(self, now_ns: int) -> None:
        """Uploads give way to publishers, by what these wrote since the last look."""
        before, self.figures.position = self.figures.position, self._shard.committed_position
        past_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        published = (self.figures.position - before) * 1_000_000_000 // max(1, past_ns)
        is_urgent = bool(self.forced) or self._room.is_pressed
        traffic = Traffic(published, self.figures.lag_bytes, is_urgent)
        config = self._config
        self._work.pace.change(
            upload_rate(traffic, config.upload_share_percent, config.upload_bytes_per_s)
        )

    def force(self, topic: Topic, below: int) -> None:
        """An operator wants everything below an offset offloaded now."""
        self.forced[topic.id] = max(below, self.forced.get(topic.id, NOT_FORCED))
        self._work.pace.change(self._config.upload_bytes_per_s)
        self._look_at(topic.id)

    @property
    def store(self) -> TieredLedgerStore:
        return self._tier.store

    @property
    def url(self) -> str:
        return self._tier.url

    @property
    def problem(self) -> str:
        """Why nothing goes to cold storage for now; empty: it does."""
        if self.is_fenced:
            return "cold storage belongs to another broker with a copy of this data directory"
        return "" if self.failure is None else self.failure.message

    @property
    def failure(self) -> DanubiusError | None:
        """Why the object store cannot be used at the moment."""
        return self._health.failure

    def problem_of(self, topic: Topic) -> str:
        """The same for one topic, whose own ledgers may be damaged."""
        damaged = [str(ref.ledger_id) for ref in self._set_aside if ref.topic_id == topic.id]
        if damaged and not self.problem:
            return f"ledgers {', '.join(damaged)} of {topic.name} are damaged, and stay on disk"
        return self.problem

    def check_object(
        self,
        topic_id: int,
        meta: LedgerMeta,
        on_done: Callable[[DanubiusError | None], None],
    ) -> None:
        """Read an object from end to end."""
        work = functools.partial(self._work.check, topic_id, meta)
        self._submit(self._threads.checks, work, on_done)

    def _can_work(self) -> bool:
        return self.is_ours and self._health.may_try

    def _hasten(self, now_ns: int) -> None:
        """Ask for a checkpoint if ledgers wait for one; not often, unless an operator waits too."""
        if self._is_waiting and (self.forced or now_ns >= self._hasten_at_ns):
            self._hasten_at_ns = now_ns + HASTEN_MS * 1_000_000
            self._is_waiting = False
            self.checkpoints.hasten()

    # ------------------------------------------------------------ the fence

    def _ask_owner(self) -> None:
        if self._is_asking or self.is_fenced or not self._health.may_try:
            return
        self._is_asking = True
        self._submit(self._threads.chores, self._work.claim, self._heard_owner)

    def _heard_owner(self, owner: Owner | DanubiusError) -> None:
        self._is_asking = False
        if isinstance(owner, DanubiusError):
            self._health.failed(owner, "claim")
            return
        was_known = self.owner is not None
        self.owner = owner
        if self.is_fenced:
            log.critical(
                "cold storage belongs to another broker with a copy of this data directory: nothing is stored or "
                "removed there any more, and what is there is served",
                extra={"url": self._tier.url, "owner_epoch": owner.epoch, "owner": owner.life},
            )
            return
        if not was_known:
            log.info("cold storage is ours", extra={"url": self._tier.url, "epoch": owner.epoch})
        is_idle = not self.figures.lag_bytes and not self._removals
        self._health.succeeded("claim", is_idle=is_idle)
        self._feed()

    # ------------------------------------------------------------ one topic

    def _look_at(self, topic_id: TopicId, *, is_round: bool = False) -> None:
        topic = self._shard.topics_by_id.get(topic_id)
        if topic is None or topic.is_deleting or not isinstance(topic.log, ManagedLedger):
            self.forced.pop(topic_id, None)
            return
        ledger = topic.log
        sizes = ledger.sizes()
        if is_round:
            self.figures.count(sizes)
        forced = self.forced.get(topic_id, NOT_FORCED)
        if not (topic.policies.offloads or forced != NOT_FORCED or sizes.stored_ledgers):
            return  # as most of ten thousand topics are
        view = self._view(topic, ledger, forced)
        found = plan(view, self._horizon())
        if is_round:
            self.figures.count_lag(found.lag_ms, found.lag_bytes)
        if found.must_seal:
            ledger.seal_open(0)
        self._is_waiting |= found.waits
        if self._can_work():
            self._do(topic, found)
        if all(m.object_name for m in view.ledgers if m.base_offset < forced):
            self.forced.pop(topic_id, None)

    def _view(self, topic: Topic, ledger: ManagedLedger, forced: int) -> TopicView:
        warm = ledger.warm_ledgers()
        metas, positions = [meta for meta, _ in warm], [position for _, position in warm]
        refs = [LedgerRef(topic.id, meta.ledger_id) for meta in metas]
        busy = {ref.ledger_id for ref in refs if ref in self._busy or ref in self._set_aside}
        return TopicView(metas, positions, topic.policies, forced, busy)

    def _do(self, topic: Topic, found: TopicPlan) -> None:
        if found.reclaims:
            self._check_reclaim(topic, found.reclaims[:REMOVED_AT_ONCE])
        for meta in found.uploads:
            if self._uploading >= 2 * self._config.uploads_at_once:
                self._deferred[topic.id] = None
                break
            self._upload(topic, meta)

    def _horizon(self) -> Horizon:
        shard = self._shard
        return Horizon(
            shard.ages.release_ms(),
            self.checkpoints.trimmed_position,
            shard.recovered_position,
            self._room.is_pressed,
        )

    # ------------------------------------------------------------ up

    def _upload(self, topic: Topic, meta: LedgerMeta) -> None:
        ref = LedgerRef(topic.id, meta.ledger_id)
        self._busy[ref] = self._work.name_of(ref, meta.epoch)
        self._uploading += 1
        work = functools.partial(self._work.upload, ref, meta)
        self._submit(
            self._threads.uploads, work, functools.partial(self._uploaded, topic, ref, meta)
        )

    def _uploaded(
        self, topic: Topic, ref: LedgerRef, meta: LedgerMeta, outcome: StoredObject | DanubiusError
    ) -> None:
        self._uploading -= 1
        if not is_there(self._shard, *ref, meta.epoch):
            # It was deleted under the upload.
            self._released(self._busy.pop(ref))
        elif isinstance(outcome, DanubiusError):
            del self._busy[ref]
            self._upload_failed(topic, ref, outcome)
        else:
            self._health.succeeded("upload")
            self.figures.uploads += 1
            self.figures.uploaded_bytes += outcome.size
            fact = LedgerOffloaded(topic.id, ref.ledger_id, meta.epoch, *outcome)
            self._journal(topic, fact, [ref])
        self._feed()

    def _upload_failed(self, topic: Topic, ref: LedgerRef, error: DanubiusError) -> None:
        if not isinstance(error, LedgerDamaged):
            self._health.failed(error, "upload")
            return
        self.figures.failures += 1
        self._set_aside[ref] = self._shard.clock.monotonic_ns() + SET_ASIDE_MS * 1_000_000
        log.error(
            "a ledger is damaged, and stays on disk as it is",
            extra={"topic": topic.name, "ledger": ref.ledger_id, "error": error.message},
        )

    def _journal(
        self, topic: Topic, fact: Event, refs: list[LedgerRef], *, releases: bool = True
    ) -> None:
        """Write a fact down, and make it true; then go on with this topic."""

        def done(error: DanubiusError | None) -> None:
            if error is not None:
                self._let_go(refs)
                log.warning("not written down, will be tried again", extra={"error": str(error)})
                return
            for ref in refs:
                name = self._busy.pop(ref)
                if releases and not is_explained(self._shard, name):
                    self._released(name)
            # Not inside the commit: what is planned next may be journaled, and reads the position.
            self._shard.loop.call_soon(self._look_at, topic.id)

        self._shard.commit(fact, done)

    def _let_go(self, refs: list[LedgerRef]) -> None:
        for ref in refs:
            self._busy.pop(ref, None)

    def _feed(self) -> None:
        """There is room for another upload."""
        while (
            self._deferred and self._uploading < self._config.uploads_at_once and self._can_work()
        ):
            topic_id = next(iter(self._deferred))
            del self._deferred[topic_id]
            self._look_at(topic_id)

    # ------------------------------------------------------------ off the disk

    def _check_reclaim(self, topic: Topic, metas: list[LedgerMeta]) -> None:
        for meta in metas:
            self._busy[LedgerRef(topic.id, meta.ledger_id)] = meta.object_name
        work = functools.partial(self._work.still_stored, topic.id, metas)
        self._submit(self._threads.chores, work, functools.partial(self._checked, topic, metas))

    def _checked(
        self, topic: Topic, metas: list[LedgerMeta], sound: list[LedgerMeta] | DanubiusError
    ) -> None:
        refs = {meta.ledger_id: LedgerRef(topic.id, meta.ledger_id) for meta in metas}
        if isinstance(sound, DanubiusError):
            self._let_go(list(refs.values()))
            self._health.failed(sound, "reclaim")
            return
        self._health.succeeded("reclaim")
        kept = {meta.ledger_id for meta in sound}
        for meta in metas:
            if meta.ledger_id not in kept:
                self.figures.failures += 1
                place = topic.id, meta.ledger_id, meta.epoch
                lost = LedgerOffloaded(*place, "", 0, 0, meta.index_entries)
                # Stored again under the same name: nothing is removed.
                self._journal(topic, lost, [refs[meta.ledger_id]], releases=False)
        if sound and topic.id in self._shard.topics_by_id:
            self.figures.reclaims += len(sound)
            fact = LedgersReclaimed(topic.id, sorted(kept))
            self._journal(topic, fact, [refs[ledger_id] for ledger_id in kept])
        else:
            self._let_go([refs[ledger_id] for ledger_id in kept])

    # ------------------------------------------------------------ out of the store

    def _released(self, name: str) -> None:
        if len(self._removals) < REMOVALS_MAX:
            self._removals[name] = None

    def _remove_some(self) -> None:
        if self._is_removing or not self._removals or not self._can_work():
            return
        in_use = set(self._busy.values())
        names = [name for name in self._removals if name not in in_use][:REMOVED_AT_ONCE]
        self._is_removing = bool(names)
        if not names:
            return
        self._submit(self._threads.chores, functools.partial(self._work.remove, names), self._gone)

    def _gone(self, outcome: Removed | DanubiusError) -> None:
        self._is_removing = False
        if isinstance(outcome, DanubiusError):
            self._health.failed(outcome, "removal")
            return
        for name in outcome.names:
            self._removals.pop(name, None)
        self.figures.removals += len(outcome.names)
        if outcome.error is not None:
            self._health.failed(outcome.error, "removal")
            return
        self._health.succeeded("removal")
        if outcome.owner != self._work.place.owner:
            self._heard_owner(outcome.owner)

    def _search(self, now_ns: int) -> None:
        """Look for objects that no ledger explains."""
        if self._is_searching or not self._can_work() or now_ns < self._search_at_ns:
            return
        self._is_searching = True
        until_ms = self._shard.ages.retention_ms() - self._config.orphan_age_ms
        work = functools.partial(self._work.objects_until, until_ms)
        self._submit(self._threads.chores, work, self._found)

    def _found(self, names: list[str] | DanubiusError) -> None:
        if isinstance(names, DanubiusError):
            self._is_searching = False
            self._health.failed(names, "search")
            return
        self._health.succeeded("search")
        self._search_at_ns = (
            self._shard.clock.monotonic_ns() + self._config.orphan_cycle_ms * 1_000_000
        )
        before, self.figures.unexplained = self.figures.orphans, 0
        in_slices(
            self._shard.loop,
            names,
            NAMES_A_SLICE,
            self._look_at_object,
            functools.partial(self._searched, before),
        )

    def _look_at_object(self, name: str) -> None:
        if is_explained(self._shard, name):
            return
        if is_past(self._shard, name):
            self.figures.orphans += 1
            self._released(name)
        else:
            self.figures.unexplained += 1

    def _searched(self, before: int) -> None:
        self._is_searching = False
        orphans, kept = self.figures.orphans - before, self.figures.unexplained
        if orphans:
            log.info("objects of no ledger are removed", extra={"objects": orphans})
        if kept:
            facts = {"objects": kept}
            log.error("objects are kept that a later state knows: an old copy?", extra=facts)
