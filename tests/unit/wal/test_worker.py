"""The worker thread: order, batches, alarms, stop, crash."""

from __future__ import annotations

import threading
import time

from danubius.runtime.threads import Worker


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
    assert woken.wait(5)
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
    assert crashed.wait(5)
    worker.put(3)
    assert worker.stop()
    assert given_up == [1, 2, 3]


def test_stop_without_start_is_fine() -> None:
    assert Worker[int]("w", lambda items, _: None, on_crash=never).stop()
