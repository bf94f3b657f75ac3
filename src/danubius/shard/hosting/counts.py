"""Counts of topics, and how many there may be: bounds of the whole broker, which hold whatever the policies say.

Those on their way to the disk count too, so that no number of requests at once gets past a bound. What the broker
makes for itself (delay logs, dead letters) is not refused: messages wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.errors import LimitReached
from danubius.model.ids import namespace_of

if TYPE_CHECKING:
    from danubius.shard.shard import Shard


def check_topics(shard: Shard, namespace: str, count: int = 1) -> None:
    """Raise LimitReached if so many more topics of a namespace are too many."""
    config, coming = shard.config, len(shard.creating)
    if len(shard.topics) + coming + count > config.topics_max:
        raise LimitReached(
            f"the broker has {len(shard.topics):,} topics, and its setting broker.topics_max allows "
            f"{config.topics_max:,}: raise it, or delete some"
        )
    here = len(shard.catalog.names.names(namespace))
    if here + coming + count <= config.namespace_topics_max:
        return
    coming = sum(namespace_of(name) == namespace for name in shard.creating)
    if here + coming + count > config.namespace_topics_max:
        raise LimitReached(
            f"namespace {namespace!r} has {here:,} topics, and the setting broker.namespace_topics_max allows "
            f"{config.namespace_topics_max:,}: raise it, delete some, or use another namespace"
        )
