"""Appliers of facts: one table, made of one table a group; nothing else makes a fact true.

A fact means the same whenever it is applied: in recovery, in the order of the journal, and live, once it is durable. So
an applier takes the broker as it is and ignores what is about a topic or subscription that is gone. Those of
acknowledgements must bear to be applied twice: cursors in a snapshot are ahead of the journal's position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.shard.features.delays import appliers as of_delays
from danubius.shard.features.offload import appliers as of_offload
from danubius.shard.features.stages import appliers as of_stages
from danubius.shard.features.transactions import appliers as of_transactions
from danubius.shard.hosting import producer_appliers as of_producers
from danubius.shard.hosting import subscription_appliers as of_subscriptions
from danubius.shard.hosting import topic_appliers as of_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.shard.shard import Shard

APPLIERS: Final[Mapping[type, Callable[[Shard, Any], None]]] = {
    **of_topics.APPLIERS,
    **of_subscriptions.APPLIERS,
    **of_producers.APPLIERS,
    **of_delays.APPLIERS,
    **of_stages.APPLIERS,
    **of_transactions.APPLIERS,
    **of_offload.APPLIERS,
}
