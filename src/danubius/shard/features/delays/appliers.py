"""Appliers of delays: how far a delay log is released, as the facts say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danubius.model.ids import TopicId
from danubius.shard.state.facts import DelayAdvanced

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.shard.shard import Shard


def _advanced(shard: Shard, fact: DelayAdvanced) -> None:
    topic = shard.topics_by_id.get(TopicId(fact.topic_id))
    if topic is not None:
        topic.watermark = max(topic.watermark, (fact.due_ms, fact.offset))


APPLIERS: Final[dict[type, Callable[[Shard, Any], None]]] = {DelayAdvanced: _advanced}
