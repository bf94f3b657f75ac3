"""Scripted brokers that know each other, and topics that move between them."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from danubius.errors import TopicMoved
from danubius.wire.commands import Error
from unit.client.scripted_broker import ScriptedBroker, serve
from unit.client.scripted_store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer


class Cluster:
    """Scripted brokers that know each other by name."""

    def __init__(self, brokers: list[ScriptedBroker]) -> None:
        self.brokers = brokers
        for broker in brokers:
            broker.version = 2
            broker.name = broker.url
            broker.is_strict = True

    def place(self, topic: str, home: ScriptedBroker) -> None:
        """From now on only this one serves the topic, and all know it."""
        for broker in self.brokers:
            broker.places[topic] = home.url
        del home.places[topic]


@asynccontextmanager
async def serve_cluster(count: int) -> AsyncGenerator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster([await stack.enter_async_context(serve()) for _ in range(count)])


def refuse_as_moved(peer: Peer, frame: Frame) -> None:
    peer.send(Error.of(TopicMoved("it has moved")), frame.correlation_id)


def move_store(store: Store, old: ScriptedBroker, new: ScriptedBroker) -> Store:
    """What a broker knows of a topic, at another."""
    new.epoch, new.next_sequence = old.epoch, old.next_sequence
    moved = Store(new)
    moved.stored, moved.answers = store.stored, store.answers
    return moved
