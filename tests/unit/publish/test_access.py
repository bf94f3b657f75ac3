"""Places on a topic: shared or alone, in order of arrival, one a name."""

from __future__ import annotations

import random

import pytest

from danubius.shard.hosting.core.access import AccessGate, Claim, Granted, Mode, Refused, Waiting


def shared(name: str) -> Claim:
    return Claim(name, Mode.SHARED)


def exclusive(name: str) -> Claim:
    return Claim(name, Mode.EXCLUSIVE)


def patient(name: str) -> Claim:
    return Claim(name, Mode.WAIT)


def test_shared_ones_come_together() -> None:
    gate = AccessGate()

    assert gate.ask(shared("a")) == Granted()
    assert gate.ask(shared("b")) == Granted()
    assert gate.others("b") == 1
    assert gate.others("c") == 2


def test_an_exclusive_one_keeps_all_others_out() -> None:
    gate = AccessGate()
    incumbent = exclusive("a")
    assert gate.ask(incumbent) == Granted()

    assert gate.ask(shared("b")) == Refused(incumbent)
    assert gate.ask(exclusive("c")) == Refused(incumbent)


def test_an_exclusive_one_finds_no_room_beside_shared_ones() -> None:
    gate = AccessGate()
    incumbent = shared("a")
    gate.ask(incumbent)

    assert gate.ask(exclusive("b")) == Refused(incumbent)
    gate.leave(incumbent)
    assert gate.ask(exclusive("b")) == Granted()


def test_those_who_wait_come_in_order_of_arrival() -> None:
    gate = AccessGate()
    incumbent, first, second = exclusive("a"), patient("b"), patient("c")
    gate.ask(incumbent)
    assert gate.ask(first) == Waiting(None)
    assert gate.ask(second) == Waiting(None)

    assert gate.leave(incumbent) == [first]
    assert gate.leave(first) == [second]
    assert gate.leave(second) == []
    assert gate.is_empty


def test_who_waits_for_several_comes_when_the_last_is_gone() -> None:
    gate = AccessGate()
    one, two, waiting = shared("a"), shared("b"), patient("c")
    for claim in (one, two, waiting):
        gate.ask(claim)

    assert gate.leave(one) == []
    assert gate.leave(two) == [waiting]
    assert gate.ask(shared("d")) == Refused(waiting)


def test_who_gives_up_waiting_is_passed_by() -> None:
    gate = AccessGate()
    incumbent, first, second = exclusive("a"), patient("b"), patient("c")
    for claim in (incumbent, first, second):
        gate.ask(claim)

    assert gate.leave(first) == []
    assert gate.leave(incumbent) == [second]


def test_a_newer_claim_of_a_name_takes_the_place_of_the_older() -> None:
    gate = AccessGate()
    old, new = exclusive("a"), exclusive("a")
    gate.ask(old)

    assert gate.ask(new) == Granted()
    assert gate.leave(old) == []
    assert gate.ask(shared("b")) == Refused(new)


def test_a_newer_claim_keeps_the_older_ones_place_in_the_queue() -> None:
    gate = AccessGate()
    incumbent, old, second, new = exclusive("a"), patient("b"), patient("c"), patient("b")
    for claim in (incumbent, old, second):
        gate.ask(claim)

    assert gate.ask(new) == Waiting(old)
    assert gate.leave(old) == []
    assert gate.leave(incumbent) == [new]
    assert gate.leave(new) == [second]


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_nobody_is_beside_an_exclusive_one_and_all_get_in(seed: int) -> None:
    dice = random.Random(seed)
    gate = AccessGate()
    inside: set[Claim] = set()
    queued: set[Claim] = set()
    for _ in range(200):
        if dice.random() < 0.5:
            claim = Claim(dice.choice("abcdef"), dice.choice(list(Mode)))
            match gate.ask(claim):
                case Granted(displaced=displaced):
                    inside = {one for one in inside if one.name != claim.name} | {claim}
                    queued.discard(displaced)
                case Waiting(displaced=displaced):
                    queued.discard(displaced)
                    queued.add(claim)
                case Refused(incumbent=incumbent):
                    assert incumbent in inside
        elif inside or queued:
            claim = dice.choice(sorted(inside | queued, key=id))
            granted = gate.leave(claim)
            assert set(granted) <= queued
            inside = inside - {claim} | set(granted)
            queued -= {claim, *granted}
        gate.check()
        assert len(inside) == gate.others("nobody")
    for _ in range(1_000):
        if not inside:
            break
        claim = inside.pop()
        inside.update(gate.leave(claim))
    assert gate.is_empty
