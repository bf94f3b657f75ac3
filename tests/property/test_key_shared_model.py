"""Key-Shared against the model of single messages, with key filters, hardly any room to hold messages, and more keys.

Joins, leaves, acknowledgements, nacks, time-outs, failure policies, crashes and reads that fail come in any order.
Checked is, with every delivery: the key is one that its consumer takes and owns; nothing older of the key waits; what
is older and open is at the same consumer. In the end nothing is lost, whatever was passed by on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from danubius.dispatch.core.events import ConsumerJoined, WritableChanged
from danubius.model.key_filters import KeyFilter
from danubius.model.subscription import SubscriptionType
from property.dispatch_shell import AMPLE, Peer
from property.test_dispatch_model import DispatchMachine

if TYPE_CHECKING:
    from danubius.dispatch.core.effects import Deliver
    from danubius.dispatch.core.events import ReadCompleted

FILTERS: list[tuple[str, ...]] = [(), (), ("*",), ("0", "1"), ("?",), ("2*",), ("3", "nobody")]


class KeySharedMachine(DispatchMachine):
    """A Key-Shared subscription whose consumers take all keys or some."""

    kind = SubscriptionType.KEY_SHARED

    def __init__(self) -> None:
        super().__init__()
        self.filters: dict[int, tuple[str, ...]] = {}
        self.strays = 0
        """Messages that were acknowledged without having been delivered: the core may have counted them before."""

    def _expect_acked(self, offsets: set[int]) -> None:
        self.strays += sum(offset not in self.flying for offset in offsets)
        super()._expect_acked(offsets)

    @rule(
        name=st.sampled_from("abcd"),
        ack_timeout_ns=st.sampled_from([0, 30]),
        filters=st.sampled_from(FILTERS),
    )
    @precondition(lambda self: len(self.peers) < 5)
    def join(self, name: str, ack_timeout_ns: int, filters: tuple[str, ...] = ()) -> None:
        consumer_id = next(self.ids)
        self.queue.append(consumer_id)
        self.peers[consumer_id] = Peer(name, ack_timeout_ns)
        self.filters[consumer_id] = filters
        self.owners.clear()
        self._tell(ConsumerJoined(consumer_id, name, ack_timeout_ns, filters))
        self._grant(consumer_id, 6, 600)

    def _check_delivery(self, effect: Deliver, chunk: ReadCompleted) -> None:
        super()._check_delivery(effect, chunk)
        for offset in effect.offsets or range(effect.first, effect.end):
            assert self._takes(effect.consumer_id, offset), "a key that its consumer does not take"

    def _takes(self, consumer_id: int, offset: int) -> bool:
        filters = self.filters[consumer_id]
        return not filters or KeyFilter(filters).accepts(b"%d" % self.hashes[offset])

    @invariant()
    def what_nobody_takes_waits_and_is_counted(self) -> None:
        if not hasattr(self, "core") or self.auto_ack or not self.peers:
            return
        waits = [o for o in range(self.end) if o not in self.acked and o not in self.flying]
        nobodys = [o for o in waits if not any(self._takes(one, o) for one in self.peers)]
        assert self.core.unmatched <= len(nobodys) + self.strays

    def teardown(self) -> None:
        """First whoever is there gets all of it; then somebody comes who takes the rest."""
        if not hasattr(self, "core"):
            return
        if self.peers:
            self._give_all()
            left = set(range(self.end)) - self.acked
            takers = [o for o in left if any(self._takes(one, o) for one in self.peers)]
            assert not takers, "messages that somebody takes never came"
            assert len(left) <= self.core.unmatched <= len(left) + self.strays
        self.join("z", 0)
        super().teardown()

    def _give_all(self) -> None:
        for _ in range(1000):
            for consumer_id, peer in self.peers.items():
                if not peer.is_writable:
                    peer.is_writable = True
                    self._tell(WritableChanged(consumer_id, is_writable=True))
                if peer.messages < 100 or peer.bytes < 100:
                    self._grant(consumer_id, AMPLE, AMPLE)
            if self.flying:
                self._ack([(offset, offset + 1) for offset in sorted(self.flying)])
            elif self.core.condemned_count:
                self.bury(100)
            elif self.reading is not None:
                self._complete_read(2)
            elif self.armed_ns is not None:
                self._pass_time(50)
            else:
                return
        raise AssertionError("it never comes to rest")


@pytest.mark.parametrize("auto_ack", [False, True])
def test_any_order_of_events_with_filters(auto_ack: bool) -> None:
    machine = type("Machine", (KeySharedMachine,), {"auto_ack": auto_ack})
    examples = 40 if auto_ack else 150
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=50, deadline=None)
    )
