"""Offsets without gaps, and each sequence stored at most once."""

from __future__ import annotations

import pytest

from danubius.errors import InvalidArgument, OutOfSequence, ProducerFenced
from danubius.model.ids import Epoch, Offset, ProducerId
from danubius.publish.core.sequencer import PRODUCERS_MAX, Producer, Sequencer
from danubius.publish.core.sequencer import Repeated as _Repeated


def Repeated(offset: int, pending_at: int | None) -> _Repeated:  # noqa: N802  # likewise
    return _Repeated(Offset(offset), None if pending_at is None else Offset(pending_at))


def opened(sequencer: Sequencer, name: str = "p", *, resumed: bool = False) -> Producer:
    epoch = sequencer.plan_open(name, 0)
    assert epoch is not None
    return sequencer.open(ProducerId(7), name, epoch, resumed=resumed)


def test_offsets_follow_each_other() -> None:
    sequencer = Sequencer(100)
    producer = opened(sequencer)
    assert sequencer.admit(producer, 0, 3) == Offset(100)
    assert sequencer.admit(producer, 3, 2) == Offset(103)
    sequencer.commit()
    sequencer.commit()
    assert sequencer.committed_offset == 105
    sequencer.check()


def test_a_repeated_batch_gets_the_first_answer() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    sequencer.admit(producer, 0, 3)
    sequencer.commit()
    sequencer.admit(producer, 3, 3)
    sequencer.commit()
    assert sequencer.admit(producer, 0, 3) == Repeated(0, None)
    assert sequencer.admit(producer, 3, 3) == Repeated(3, None)
    assert sequencer.next_offset == 6


def test_a_repeated_batch_waits_for_the_pending_first_one() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    sequencer.admit(producer, 0, 3)
    assert sequencer.admit(producer, 0, 3) == Repeated(0, 0)


def test_answers_are_remembered_between_other_producers() -> None:
    sequencer = Sequencer()
    one, two = opened(sequencer, "one"), opened(sequencer, "two")
    for number in range(5):
        sequencer.admit(one, number, 1)
        sequencer.commit()
        sequencer.admit(two, number, 1)
        sequencer.commit()
    assert [sequencer.admit(one, n, 1) for n in range(5)] == [
        Repeated(2 * n, None) for n in range(5)
    ]


def test_a_gap_is_refused() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    with pytest.raises(OutOfSequence, match="0 comes next"):
        sequencer.admit(producer, 5, 1)


def test_a_batch_that_overlaps_two_stored_ones_and_the_future_is_refused() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    sequencer.admit(producer, 0, 2)
    sequencer.commit()
    with pytest.raises(InvalidArgument):
        sequencer.admit(producer, 1, 5)


def test_a_newer_life_fences_the_older_one() -> None:
    sequencer = Sequencer()
    older = opened(sequencer)
    newer = opened(sequencer)
    assert newer.epoch == older.epoch + 1
    assert newer.id == older.id
    with pytest.raises(ProducerFenced):
        sequencer.admit(older, 0, 1)
    assert sequencer.admit(newer, 0, 1) == Offset(0)


def test_resuming_the_current_life_changes_nothing() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    assert sequencer.plan_open("p", producer.epoch) is None


def test_resuming_a_fenced_life_is_refused() -> None:
    sequencer = Sequencer()
    older = opened(sequencer)
    opened(sequencer)
    with pytest.raises(ProducerFenced, match="taken over"):
        sequencer.plan_open("p", older.epoch)


def test_resuming_a_forgotten_life_adopts_its_sequence() -> None:
    sequencer = Sequencer()
    epoch = sequencer.plan_open("forgotten", 4)
    assert epoch == 4
    producer = sequencer.open(ProducerId(1), "forgotten", Epoch(4), resumed=True)
    assert sequencer.admit(producer, 900, 1) == Offset(0)
    with pytest.raises(OutOfSequence):
        sequencer.admit(producer, 902, 1)


def test_roll_back_forgets_all_that_is_pending() -> None:
    sequencer = Sequencer()
    one, two = opened(sequencer, "one"), opened(sequencer, "two")
    sequencer.admit(one, 0, 2)
    sequencer.commit()
    sequencer.admit(one, 2, 2)
    sequencer.admit(two, 0, 5)
    sequencer.roll_back()
    sequencer.check()
    assert sequencer.next_offset == 2
    assert sequencer.admit(two, 0, 5) == Offset(2)
    assert sequencer.admit(one, 2, 2) == Offset(7)


def test_only_detached_producers_are_forgotten() -> None:
    sequencer = Sequencer()
    kept = opened(sequencer, "kept")
    kept.is_attached = True
    for number in range(PRODUCERS_MAX):
        opened(sequencer, f"p{number}")
    assert len(sequencer.producers) == PRODUCERS_MAX
    assert sequencer.producer_or_none("kept") is kept
    assert sequencer.producer_or_none("p0") is None


def test_replay_rebuilds_what_commit_left() -> None:
    live, replayed = Sequencer(), Sequencer()
    producer, twin = opened(live), opened(replayed)
    for sequence, count in ((0, 3), (3, 1), (4, 9)):
        live.admit(producer, sequence, count)
        live.commit()
        replayed.replay(twin, sequence, count)
    assert replayed.next_offset == live.next_offset
    assert list(twin.runs) == list(producer.runs)
    assert replayed.admit(twin, 3, 1) == Repeated(3, None)


def test_an_opening_that_failed_leaves_the_life_before_it() -> None:
    sequencer = Sequencer()
    older = opened(sequencer)
    newer = opened(sequencer)
    sequencer.close(newer, older)
    assert sequencer.producer_or_none("p") is older
    assert sequencer.admit(older, 0, 1) == Offset(0)


def test_an_opening_that_failed_late_does_not_end_a_newer_one() -> None:
    sequencer = Sequencer()
    first, second = opened(sequencer), opened(sequencer)
    sequencer.close(first, None)
    assert sequencer.producer_or_none("p") is second


def test_replay_forgets_nobody_and_the_bound_is_reached_again_step_by_step() -> None:
    sequencer = Sequencer()
    early = sequencer.open(ProducerId(1), "early", Epoch(1), resumed=False)
    for number in range(PRODUCERS_MAX + 50):
        sequencer.open(
            ProducerId(2 + number), f"p{number}", Epoch(1), resumed=False, is_replay=True
        )
    # Who is still there is not known before they are back.
    assert sequencer.producer_or_none("early") is early
    early.is_attached = True
    for number in range(60):
        sequencer.open(ProducerId(99_000 + number), f"new{number}", Epoch(1), resumed=False)
    assert len(sequencer.producers) == PRODUCERS_MAX
    assert sequencer.producer_or_none("early") is early


def test_what_the_broker_publishes_is_no_part_of_any_sequence() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    assert sequencer.admit(producer, 0, 2) == Offset(0)
    assert sequencer.assign(3) == Offset(2)
    assert sequencer.admit(producer, 2, 1) == Offset(5)
    sequencer.check()
    for _ in range(3):
        sequencer.commit()
    assert sequencer.committed_offset == 6
    assert producer.committed_next == 3
    assert sequencer.admit(producer, 2, 1) == Repeated(5, None)
    sequencer.check()


def test_roll_back_forgets_what_the_broker_published_with_all_around_it() -> None:
    sequencer = Sequencer()
    producer = opened(sequencer)
    sequencer.assign(3)
    sequencer.commit()
    sequencer.admit(producer, 0, 1)
    sequencer.assign(5)
    sequencer.admit(producer, 1, 1)
    sequencer.roll_back()
    sequencer.check()
    assert sequencer.admit(producer, 0, 1) == Offset(3)


def test_a_new_life_may_go_on_with_the_sequence_of_the_one_before() -> None:
    sequencer = Sequencer()
    producer = sequencer.open(ProducerId(1), "p", Epoch(2), resumed=False, next_sequence=40)
    with pytest.raises(OutOfSequence, match="40 comes next"):
        sequencer.admit(producer, 41, 1)
    assert sequencer.admit(producer, 40, 1) == Offset(0)
