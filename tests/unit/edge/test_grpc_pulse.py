"""When a front is taken for dead: not because its machine is busy."""

from __future__ import annotations

from danubius.edge.grpc.pulse import ENOUGH_CPU_S, MISSED_MAX, Pulse


def test_one_that_sleeps_and_does_not_answer_is_dead_after_so_many_questions() -> None:
    pulse = Pulse()
    verdicts = [pulse.tick(1.0, is_runnable=False) for _ in range(MISSED_MAX)]
    assert verdicts == [False] * (MISSED_MAX - 1) + [True]


def test_one_that_runs_and_does_not_answer_is_dead_after_so_many_questions() -> None:
    pulse = Pulse()
    verdicts = [pulse.tick(cpu_s, is_runnable=True) for cpu_s in range(1, MISSED_MAX + 1)]
    assert verdicts == [False] * (MISSED_MAX - 1) + [True]


def test_one_that_only_waits_for_a_core_is_not_dead() -> None:
    pulse = Pulse()
    assert not any(pulse.tick(0.1, is_runnable=True) for _ in range(100 * MISSED_MAX))


def test_what_one_gets_of_a_busy_core_adds_up() -> None:
    pulse = Pulse()
    assert not pulse.tick(10.0, is_runnable=False)
    share_s = ENOUGH_CPU_S / 10
    verdicts = [pulse.tick(10.0 + n * share_s, is_runnable=True) for n in range(1, 100)]
    assert 9 * (MISSED_MAX - 1) <= verdicts.index(True) <= 11 * (MISSED_MAX - 1)


def test_an_answer_begins_the_count_again() -> None:
    pulse = Pulse()
    for _ in range(5):
        for _ in range(MISSED_MAX - 1):
            assert not pulse.tick(1.0, is_runnable=False)
        pulse.answered()
        assert not pulse.tick(1.0, is_runnable=False)
