"""Acknowledgements and a disk that fails: none is answered that was not written."""

from __future__ import annotations

from typing import Any

from danubius.errors import StorageFailed
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.shard.state.facts import EVENT_RECORD, RangesAcked, decode_event
from danubius.wire.commands import Ack, Done, Error, Subscribe

TOPIC = "/default/orders"
EXCLUSIVE = SubscriptionType.EXCLUSIVE


def consume(bench: Any, messages: int) -> tuple[Any, int]:
    """A peer with a consumer on a topic of so many messages, and the consumer's handle."""
    peer = bench.connect()
    peer.publish(TOPIC, [b"m"] * messages)
    return peer, peer.call(Subscribe(TOPIC, "s", EXCLUSIVE, "c", AtEarliest())).handle


def journaled_acks(bench: Any) -> list[tuple[int, int]]:
    """What a recovery would find."""
    return [
        one
        for record in bench.recover_journal()
        if record.kind == EVENT_RECORD
        and isinstance(event := decode_event(record.body), RangesAcked)
        for one in event.ranges
    ]


async def test_an_ack_that_failed_is_written_before_the_next_one_is_confirmed(bench: Any) -> None:
    peer, handle = consume(bench, 4)
    bench.files.fail("write")
    assert peer.call(Ack(handle, [(0, 1)])).code == StorageFailed.code
    assert peer.call(Ack(handle, [(0, 1)])) == Done()
    assert journaled_acks(bench) == [(0, 1)]


async def test_an_ack_that_nobody_waits_for_outlives_a_failure_too(bench: Any) -> None:
    peer, handle = consume(bench, 4)
    peer.session.handle(Ack(handle, [(0, 1)]), 0, memoryview(b""))
    bench.files.fail("write")
    bench.shard.acks.write()
    bench.settle()
    peer.session.handle(Ack(handle, [(2, 3)]), 0, memoryview(b""))
    bench.shard.acks.write()
    bench.settle()
    assert journaled_acks(bench) == [(0, 1), (2, 3)]


async def test_a_confirmation_behind_a_failed_ack_fails_with_it(bench: Any) -> None:
    peer, handle = consume(bench, 4)
    peer.session.handle(Ack(handle, [(0, 1)]), 0, memoryview(b""))
    bench.files.fail("write")
    bench.shard.acks.write()
    barrier = peer.ask(Ack(handle, [(0, 1)]))
    bench.settle()
    assert isinstance(peer.answer_to(barrier), Error)
    assert peer.call(Ack(handle, [(0, 1)])) == Done()
    assert journaled_acks(bench) == [(0, 1)]
