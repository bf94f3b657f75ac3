"""Many things are gone through some at a time, in order, and the end is told once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from danubius.admin import namespaces
from danubius.model import admin
from danubius.model.topic import TopicSpec
from danubius.runtime.slices import in_slices
from danubius.wire.commands import CreateTopic

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """Turns when it is told to."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None], /) -> None:
        self._calls.append(callback)

    def turn(self) -> bool:
        if not self._calls:
            return False
        self._calls.popleft()()
        return True


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_all_come_in_order_ten_in_a_turn_and_then_the_end(count: int) -> None:
    loop = Loop()
    seen: list[int] = []
    ends: list[int] = []
    sizes: list[int] = []
    in_slices(loop, range(count), 10, seen.append, lambda: ends.append(len(seen)))
    sizes.append(len(seen))
    while loop.turn():
        sizes.append(len(seen) - sum(sizes))
    assert seen == list(range(count))
    assert ends == [count]
    assert max(sizes) <= 10
    assert len(sizes) == max(1, -(-count // 10))


async def test_a_namespace_with_many_topics_is_added_up_in_many_turns(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "COUNTED_SLICE", 10)
    loop = Loop()
    bench.shard.loop = loop
    peer = bench.connect()
    peer.call(CreateTopic("/many/t", TopicSpec(), partitions=25))
    for partition in (0, 11, 24):
        peer.publish(f"/many/t-part-{partition}", [b"x" * 100])
    described: list[Any] = []
    listed: list[Any] = []

    namespaces.ADMIN[admin.DescribeNamespace](
        bench.node, admin.DescribeNamespace("many"), described.append
    )
    namespaces.ADMIN[admin.ListNamespaces](bench.node, admin.ListNamespaces(), listed.append)
    assert not described
    assert not listed
    while loop.turn():
        pass

    (reply,) = described
    (line,) = (one for one in listed[0].namespaces if one.namespace == "many")
    stored = sum(topic.stored_bytes for topic in bench.shard.topics.values())
    assert reply.topics == line.topics == 25
    assert reply.stored_bytes == line.stored_bytes == stored > 300
