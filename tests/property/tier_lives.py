"""Brokers with cold storage that live one after the other on one disk and one object store."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from danubius.errors import DanubiusError
from danubius.ledger.managed import ManagedLedger
from danubius.model.policy import Policies
from danubius.model.topic import TopicSpec
from danubius.record.encode import encode
from danubius.shard.features.offload.offloading import Offloading, Tier
from danubius.shard.state.facts import BARRIER, LogTrimmed
from danubius.tier.config import TierConfig
from danubius.tier.memory_objects import MemoryObjects
from danubius.tier.offload import OWNER, Owner, Place, TierThreads, TierWork
from danubius.tier.tiered_store import TieredLedgerStore
from danubius.tier.unpacking import check_object
from faulty_objects import FaultyObjects
from property.broker_lives import SMALL_LEDGERS, BrokerLives

if TYPE_CHECKING:
    from danubius.ledger.local import LocalLedgerStore
    from danubius.model.ids import Offset
    from danubius.sim.threads import SimThreads

STORE_ID: Final = "5" * 32
TOPIC: Final = "/default/cold"
AT_ONCE: Final = TopicSpec(policies=Policies(offload_age_ms=0))
CONFIG: Final = TierConfig(
    url="memory://", segment_bytes=64 * 1024, cache_bytes=1 << 20, orphan_age_ms=0
)


class TierLives(BrokerLives):
    """One topic whose ledgers go to the object store as soon as they may."""

    def __init__(self, seed: int = 0, config: TierConfig = CONFIG) -> None:
        super().__init__(seed, ledgers=SMALL_LEDGERS)
        self.config = config
        self.memory = MemoryObjects(clock=self.clock)
        self.objects = FaultyObjects(self.memory)
        self.sent: dict[int, bytes] = {}
        """By offset: what was answered."""
        self.tried = 0
        self.cold_store: TieredLedgerStore
        self.work: TierWork
        self.life = 0

    # ---------------------------------------------------------------- lives

    def tier(self, local: LocalLedgerStore) -> Tier:
        self.life += 1
        place = Place(STORE_ID, Owner(self.epoch, f"life-{self.life}"))
        config = self.config
        work = self.work = TierWork(config, local, self.objects, place, SMALL_LEDGERS.block_bytes)
        store = self.cold_store = TieredLedgerStore(config, local, self.objects, self.threads)
        threads = TierThreads(config, work, self.posted.append, self.threads)
        return Tier(config, store, threads, "memory://")

    def cold_of_replica(self, local: LocalLedgerStore, threads: SimThreads) -> TieredLedgerStore:
        return TieredLedgerStore(self.config, local, self.objects, threads)

    def boot(self) -> None:
        self.epoch += 1
        self.trimmed_position = 0
        self.wants_checkpoint = False
        super().boot()
        self.node.start_offloading(self)
        self.topic = self.host(TOPIC, AT_ONCE)

    def hasten(self) -> None:
        self.wants_checkpoint = True

    @property
    def offloading(self) -> Offloading:
        assert self.node.offloading is not None
        return self.node.offloading

    @property
    def log(self) -> ManagedLedger:
        log = self.topic.log
        assert isinstance(log, ManagedLedger)
        return log

    # ---------------------------------------------------------------- steps

    def publish(self, count: int = 1, size: int = 2000) -> None:
        for _ in range(count):
            payload = b"%d/" % self.tried + bytes(size)
            self.tried += 1
            batch = memoryview(encode([payload], publish_time_us=self.clock.wall_us()))
            answer = functools.partial(self.answered, payload)
            self.topic.pipeline.publish_unsequenced(batch, answer)

    def answered(self, payload: bytes, answer: Offset | DanubiusError) -> None:
        if not isinstance(answer, DanubiusError):
            self.sent[answer] = payload

    def advance(self) -> None:
        """A checkpoint behind all that was journaled."""
        self.wants_checkpoint = False
        self.shard.commit(BARRIER, _ignore)
        self.settle()
        self.checkpoint()

    def cycle(self, rounds: int = 1) -> None:
        """So many whole looks at everything, with the checkpoints that it asks for."""
        for _ in range(rounds * 12):
            self.clock.now_ms += 1000
            self.offloading.tick()
            self.settle()
            if self.wants_checkpoint:
                self.advance()

    def offload_all(self) -> None:
        """Until nothing is left to be done."""
        for _ in range(12):
            self.cycle()
            if self.is_done():
                return
        raise AssertionError([m for m in self.log.ledgers if m.is_sealed and m.is_local])

    def is_done(self) -> bool:
        return all(not m.is_local for m in self.log.ledgers if m.is_sealed)

    def trim(self, start: int) -> None:
        """As retention does it."""
        self.shard.commit(LogTrimmed(self.topic.id, start), _ignore)
        self.settle()
        self.sent = {offset: sent for offset, sent in self.sent.items() if offset >= start}

    # ---------------------------------------------------------------- what must be true

    def stored(self) -> set[str]:
        """The names of all objects but the owner's."""
        return {info.name for info in self.memory.list("") if not info.name.endswith(OWNER)}

    def compare(self) -> None:
        """Everything that was answered is there, once and in order; nothing else is but what was tried."""
        found = dict(self.messages(self.topic))
        for offset, payload in self.sent.items():
            if offset >= self.log.start_offset:
                assert found.get(offset) == payload, offset
        assert sorted(found) == list(range(self.log.start_offset, self.log.end_offset))
        assert len(set(found.values())) == len(found)
        self.sent = found

    def check_places(self) -> None:
        """Objects are those of the ledgers, files are those of local ledgers, and nothing else is anywhere."""
        assert self.stored() == {m.object_name for m in self.log.ledgers if m.object_name}
        for meta in self.log.ledgers:
            if meta.object_name:
                footer = check_object(self.memory, meta.object_name)
                assert footer.object_bytes == meta.object_bytes
                assert (footer.base_offset, footer.end_offset, footer.data_bytes) == (
                    meta.base_offset,
                    meta.end_offset,
                    meta.data_bytes,
                )
        # What is on the disk is nobody else's to ask.
        files = self.offloading._tier.store.list()
        local = {ref.ledger_id for ref in files if ref.topic_id == self.topic.id}
        written = {m.ledger_id for m in self.log.ledgers if m.is_local and m.is_sealed}
        gone = {m.ledger_id for m in self.log.ledgers if not m.is_local}
        assert not local & gone
        assert local <= written | {m.ledger_id for m in self.log.ledgers if not m.is_sealed}


def _ignore(_error: DanubiusError | None) -> None:
    pass
