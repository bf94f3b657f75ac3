"""Faults that are planted into the product: the simulated worlds must find each within a stated number of seeds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from danubius.client.consuming.consumer_lane import ConsumerLane
from danubius.dispatch.core.subscription import SubscriptionCore
from danubius.edge.native.binary import BinaryConnection
from danubius.ledger.storage import LedgerStorage
from danubius.publish.core.sequencer import ADOPT, Sequencer
from danubius.shard.hosting.ack_journal import AckJournal
from danubius.shard.state.atomic import Atomic
from danubius.wal.journal import Journal
from danubius.wal.writer import JournalWriter
from simulation.stories import run_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    Plant = Callable[[pytest.MonkeyPatch], None]

SEEDS: Final = 25
"""Each is found by one of the first so many."""


def _nothing(*_args: object, **_facts: object) -> None:
    """What is not done."""


def _refuse(*_args: object) -> bool:
    return False


def _done_at_once(_self: object, on_done: Callable[[None], None]) -> None:
    on_done(None)


def _answers_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: JournalWriter, _aside: object = contextlib.nullcontext) -> None:
        if self.durable != self.end and self._segment is None:
            self._open_next()
        self.durable = self.end
        self.must_sync = False

    patch.setattr(JournalWriter, "sync", sync)
    patch.setattr(JournalWriter, "write_synced", _refuse)


def _forgets_the_sequence_window_on_recovery(patch: pytest.MonkeyPatch) -> None:
    replay = Sequencer.replay

    def forget(self: Sequencer, producer: Any, sequence: int, count: int) -> None:
        replay(self, None, sequence, count)
        if producer is not None:
            producer.committed_next = producer.admitted_next = ADOPT

    patch.setattr(Sequencer, "replay", forget)


def _stores_what_is_repeated(patch: pytest.MonkeyPatch) -> None:
    admit = Sequencer.admit

    def again(self: Sequencer, producer: Any, sequence: int, count: int) -> Any:
        if producer.admitted_next not in (ADOPT, sequence):
            producer.admitted_next = sequence
        return admit(self, producer, sequence, count)

    patch.setattr(Sequencer, "admit", again)


def _acknowledges_one_too_many(patch: pytest.MonkeyPatch) -> None:
    on_acked = SubscriptionCore._on_acked

    def more(self: SubscriptionCore, ranges: Any, **facts: Any) -> Any:
        longer = [(first, end + (end % 16 == 0 and end < self.end)) for first, end in ranges]
        return on_acked(self, longer, **facts)

    patch.setattr(SubscriptionCore, "_on_acked", more)


def _confirms_an_ack_that_is_not_journaled(patch: pytest.MonkeyPatch) -> None:
    def append(self: AckJournal, topic: Any, subscription: Any, waiting: list[Any]) -> None:
        subscription.unjournaled = type(subscription.unjournaled)()
        for on_done in waiting:
            on_done(None)

    patch.setattr(AckJournal, "_append", append)


def _commits_messages_without_their_acks(patch: pytest.MonkeyPatch) -> None:
    commit = Atomic.commit

    def half(self: Atomic, appends: Any, facts: Any, on_done: Any) -> None:
        commit(self, appends, [] if appends else facts, on_done)

    patch.setattr(Atomic, "commit", half)


def _loses_the_last_record_on_recovery(patch: pytest.MonkeyPatch) -> None:
    inspect = Journal.inspect

    def shorter(self: Journal, *args: Any, **facts: Any) -> Any:
        records = list(inspect(self, *args, **facts))
        yield from records[:-1]

    patch.setattr(Journal, "inspect", shorter)


def _trims_before_ledgers_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerStorage, "flush", _done_at_once)


def _loses_what_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerLane, "nack_nowait", _nothing)


def _never_misses_a_silent_peer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BinaryConnection, "check_alive", _nothing)


PLANTED: Final[list[Plant]] = [
    _answers_before_the_sync,
    _forgets_the_sequence_window_on_recovery,
    _stores_what_is_repeated,
    _acknowledges_one_too_many,
    _confirms_an_ack_that_is_not_journaled,
    _commits_messages_without_their_acks,
    _loses_the_last_record_on_recovery,
    _trims_before_ledgers_are_synced,
    _loses_what_is_given_back,
    _never_misses_a_silent_peer,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            run_seed(seed)
        except BaseException as error:  # noqa: BLE001  # whatever it leads to, it is found
            command = error.__notes__[-1]
            break
    else:
        command = f"not found by {SEEDS} seeds"
    assert command.startswith("make simulate SEED=")
