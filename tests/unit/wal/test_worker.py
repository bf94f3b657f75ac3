"""The worker thread: order, batches, alarms, stop, crash."""

from __future__ import annotations

import threading
import time

from danubius.runtime.threads import Worker, finishing
from patience import HANG_S


def never(items: list[int], crash: BaseException) -> None:
    raise AssertionError(f"{items} were given up: {crash!r}")


def test_items_are_handled_in_order_and_all_before_stop_returns() -> None:
    seen: list[int] = []
    worker = Worker[int]("w", lambda items, _: seen.extend(items), on_crash=never)
    worker.start()
    for number in range(10_000):
        worker.put(number)
    assert worker.stop()
    assert seen == list(range(10_000))


def test_what_waits_is_handled_as_one_batch() -> None:
    batches: list[list[int]] = []
    worker = Worker[int]("w", lambda items, _: batches.append(items), on_crash=never, drain_max=4)
    for number in range(6):
        worker.put(number)
    worker.start()
    assert worker.stop()
    assert batches == [[0, 1, 2, 3], [4, 5]]


def test_the_handler_is_called_again_when_it_asked_for_it() -> None:
    woken = threading.Event()
    calls: list[tuple[list[int], int]] = []

    def handle(items: list[int], now_ns: int) -> int | None:
        calls.append((items, now_ns))
        if items:
            return now_ns + 2_000_000
        woken.set()
        return None

    worker = Worker[int]("w", handle, on_crash=never)
    worker.start()
    worker.put(1)
    assert woken.wait(HANG_S)
    assert worker.stop()
    assert [items for items, _ in calls] == [[1], []]
    assert calls[1][1] - calls[0][1] >= 2_000_000
    assert calls[1][1] <= time.monotonic_ns()


def test_items_of_a_crashed_worker_are_given_up_not_lost() -> None:
    given_up: list[int] = []
    crashed = threading.Event()

    def handle(items: list[int], now_ns: int) -> None:
        raise ValueError(f"cannot do {items}")

    def on_crash(items: list[int], crash: BaseException) -> None:
        assert isinstance(crash, ValueError)
        given_up.extend(items)
        crashed.set()

    worker = Worker[int]("w", handle, on_crash=on_crash)
    worker.put(1)
    worker.put(2)
    worker.start()
    assert crashed.wait(HANG_S)
    worker.put(3)
    assert worker.stop()
    assert given_up == [1, 2, 3]


def test_what_was_finished_before_a_crash_is_not_given_up() -> None:
    done: list[int] = []
    given_up: list[int] = []

    def handle(items: list[int], now_ns: int) -> None:
        for item in finishing(items):
            if item == 3:
                raise ValueError
            done.append(item)

    worker = Worker[int]("w", handle, on_crash=lambda items, _: given_up.extend(items))
    for number in range(1, 6):
        worker.put(number)
    worker.start()
    assert worker.stop()
    assert done == [1, 2]
    assert given_up == [3, 4, 5]


def test_a_crash_without_items_is_told_too() -> None:
    told = threading.Event()

    def handle(items: list[int], now_ns: int) -> int:
        if not items:
            raise ValueError
        return now_ns

    worker = Worker[int]("w", handle, on_crash=lambda items, crash: told.set())
    worker.start()
    worker.put(1)
    assert told.wait(HANG_S)
    assert worker.stop()


def test_an_idle_worker_lets_the_caller_do_the_work_if_that_is_quick() -> None:
    threads: list[threading.Thread] = []
    worker = Worker[int](
        "w", lambda items, _: threads.append(threading.current_thread()), on_crash=never
    )
    assert worker.try_run(1, lambda _: True)
    assert threads == [threading.current_thread()]
    assert not worker.try_run(2, lambda _: False)
    assert len(threads) == 1
    worker.start()
    worker.put(2)
    assert worker.stop()
    assert len(threads) == 2


def test_whether_it_is_quick_is_asked_only_while_the_thread_does_nothing() -> None:
    is_in_handler = threading.Event()
    may_go_on = threading.Event()
    asked: list[bool] = []

    def handle(items: list[int], now_ns: int) -> int | None:
        if not items:
            is_in_handler.set()
            assert may_go_on.wait(HANG_S)
            return None
        return now_ns + 1

    def is_quick(_item: int) -> bool:
        asked.append(True)
        return True

    worker = Worker[int]("w", handle, on_crash=never)
    worker.start()
    # Woken by the clock, the thread is busy though nothing was put that it has not handled.
    worker.put(1)
    assert is_in_handler.wait(HANG_S)
    assert not worker.try_run(2, is_quick)
    assert asked == []
    may_go_on.set()
    assert worker.stop()


def test_a_handler_that_steps_aside_lets_the_caller_work_meanwhile() -> None:
    is_aside = threading.Event()
    may_go_on = threading.Event()
    seen: list[tuple[list[int], bool]] = []

    def handle(items: list[int], now_ns: int) -> int | None:
        seen.append((items, worker.is_current))
        if items == [1]:
            return now_ns  # called again at once, with nothing put that was not handled
        if worker.is_current and not may_go_on.is_set():
            with worker.aside():
                is_aside.set()
                assert may_go_on.wait(HANG_S)
        return None

    worker = Worker[int]("w", handle, on_crash=never)
    worker.start()
    worker.put(1)
    assert is_aside.wait(HANG_S)
    assert worker.try_run(2, lambda _: True)
    may_go_on.set()
    assert worker.stop()
    assert seen == [([1], True), ([], True), ([2], False)]


def test_who_hands_over_and_waits_finds_it_handled() -> None:
    handled: list[tuple[list[int], bool]] = []

    def handle(items: list[int], now_ns: int) -> int | None:
        handled.append((items, worker.is_current))
        return None

    worker = Worker[int]("w", handle, on_crash=never)
    worker.start()
    assert worker.put_and_wait(1, lambda _: True, 30)
    assert handled == [([1], True)]
    assert not worker.put_and_wait(2, lambda _: False, 30)
    worker.put(2)
    assert worker.stop()
    assert handled == [([1], True), ([2], True)]


def test_nobody_waits_for_a_handler_that_hangs_and_what_it_has_is_handled_once() -> None:
    may_go_on = threading.Event()
    handled: list[int] = []

    def handle(items: list[int], now_ns: int) -> int | None:
        assert may_go_on.wait(HANG_S)
        handled.extend(items)
        return None

    worker = Worker[int]("w", handle, on_crash=never)
    worker.start()
    assert worker.put_and_wait(1, lambda _: True, 0.001)
    assert handled == []
    # It is busy: nobody is asked to wait behind the one that hangs.
    assert not worker.put_and_wait(2, lambda _: True, 30)
    worker.put(2)
    may_go_on.set()
    assert worker.stop()
    assert handled == [1, 2]


def test_stop_without_start_is_fine() -> None:
    assert Worker[int]("w", lambda items, _: None, on_crash=never).stop()
