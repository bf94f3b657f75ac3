"""What has come to stay is not walked again."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from danubius.app.collector import GROWTH_MIN, Collector

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_is_there_at_the_start_is_frozen() -> None:
    Collector(lambda: 0).start()
    assert gc.get_freeze_count() > 0


def test_many_new_topics_are_frozen_and_few_are_not() -> None:
    topics: list[list[object]] = []
    collector = Collector(lambda: len(topics))
    collector.start()
    before = gc.get_freeze_count()
    topics += [[] for _ in range(GROWTH_MIN - 1)]
    collector.tick()
    assert gc.get_freeze_count() <= before
    topics += [[]]
    collector.tick()
    assert gc.get_freeze_count() >= before + GROWTH_MIN
    held = gc.get_freeze_count()
    topics += [[] for _ in range(GROWTH_MIN)]
    collector.tick()
    assert gc.get_freeze_count() <= held, "a tenth and a thousand more are needed"
