"""All parts of one broker, put together: its state, and what acts on it.

The parts know the broker, the broker knows none of them: a part that needs another is given it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.admin.about import About
from danubius.admin.rates import Rates
from danubius.shard.features.dead_letters.moving import DeadLetters
from danubius.shard.features.delays.delays import Delays
from danubius.shard.features.offload.offloading import Offloading
from danubius.shard.features.stages.staging import Staging
from danubius.shard.features.transactions.transactions import Transactions
from danubius.shard.hosting.ages import LOOK_MS
from danubius.shard.hosting.expiry_sweep import ExpirySweep
from danubius.shard.hosting.quota import Quotas
from danubius.shard.hosting.retention import TopicRetention
from danubius.shard.state.atomic import Atomic

if TYPE_CHECKING:
    from danubius.shard.features.offload.offloading import Checkpoints, Tier
    from danubius.shard.shard import Shard


class Node:
    """What a session reaches. Every part exists before recovery, and begins to act with `start`."""

    def __init__(self, shard: Shard, tier: Tier | None = None) -> None:
        self.shard = shard
        self.about = About()
        self.atomic = Atomic(shard)
        self.dead_letters = DeadLetters(shard, self.atomic, self.about)
        self.delays = Delays(shard, self.atomic)
        self.retention = TopicRetention(shard, self.atomic)
        self.offloading = None if tier is None else Offloading(shard, tier)
        """None: the broker has no object store."""
        self.expiry = ExpirySweep(shard, self.atomic)
        self.quotas = Quotas(shard, self.atomic)
        self.rates = Rates(shard)
        self.staging = Staging(shard, self.atomic)
        self.transactions = Transactions(shard, self.atomic)

    def start(self) -> None:
        """The state is recovered and the journal takes appends: go to work."""
        self.shard.catalog.adopt_namespaces()
        # Namespaces and topics may have changed behind the facts that put a topic up.
        for topic in self.shard.topics_by_id.values():
            self.shard.apply_policies(topic)
        self.shard.ticks.add(LOOK_MS, self.shard.ages.look)
        self.delays.start()
        self.expiry.start()
        self.quotas.start()
        self.rates.start()
        self.retention.start()
        self.staging.start()
        self.transactions.start()
        self.shard.begin([self.dead_letters, self.delays])

    def start_offloading(self, checkpoints: Checkpoints) -> None:
        """There are checkpoints now, which say which ledgers nothing can change any more."""
        if self.offloading is not None:
            self.offloading.checkpoints = checkpoints
            self.offloading.start()

    def stop_offloading(self) -> None:
        if self.offloading is not None:
            self.offloading.close()
