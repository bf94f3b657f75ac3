"""A producer's place on a topic: what limits and access modes count, from the request on until the handle goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.shard.hosting.core.access import Claim, Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError
    from danubius.shard.hosting.topic import AttachedProducer, Topic
    from danubius.shard.shard import Shard


class Place(Claim):
    """A claim to a topic, and who is behind it."""

    __slots__ = ("_shard", "address", "holder", "on_granted", "on_refused", "topic")

    def __init__(
        self, shard: Shard, topic: Topic, name: str, mode: Mode, address: str = ""
    ) -> None:
        super().__init__(name, mode)
        self.address = address
        self._shard = shard
        self.topic = topic
        self.holder: AttachedProducer | None = None
        """None: it is still on its way."""
        self.on_granted: Callable[[], None]
        self.on_refused: Callable[[DanubiusError], None]

    def leave(self) -> None:
        """Give it up; whoever waits for it comes in. Twice is as good as once."""
        for claim in self._shard.admission.leave(self.topic, self):
            assert isinstance(claim, Place)
            self._shard.loop.call_soon(claim.on_granted)
