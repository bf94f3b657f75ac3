"""What each journaled fact does to the broker: one table, made of one table a group; nothing else makes a fact true.

A fact means the same whenever it is applied: in recovery, in the order of the journal, and live, once it is durable. So
an applier takes the broker as it is and ignores what is about a topic or subscription that is gone. Those of
acknowledgements must bear to be applied twice: cursors in a snapshot are ahead of the journal's position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.broker import (
    recovery_producers,
    recovery_stages,
    recovery_subscriptions,
    recovery_tier,
    recovery_topics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.broker.broker import Broker

APPLIERS: Final[Mapping[type, Callable[[Broker, Any], None]]] = {
    **recovery_topics.APPLIERS,
    **recovery_subscriptions.APPLIERS,
    **recovery_producers.APPLIERS,
    **recovery_stages.APPLIERS,
    **recovery_tier.APPLIERS,
}
