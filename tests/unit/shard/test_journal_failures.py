"""A journal that fails: when it began and when it was over, whether or not anybody publishes meanwhile."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from danubius.app.journal_probe import JournalProbe
from danubius.model.topic import TopicSpec
from danubius.shard.state.facts import BARRIER, decode_event
from danubius.wire.commands import CreateTopic, Done, Error, OpenProducer, ProducerOpened


async def test_a_failing_journal_is_logged_once_until_it_works_again(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "danubius.shard.shard")
    peer = bench.connect()
    number = 0
    for _ in range(2):
        bench.files.fail("write", times=100)
        for _ in range(3):
            number += 1
            refused = peer.call(CreateTopic(f"/default/t{number}", TopicSpec()))
            assert isinstance(refused, Error)
        bench.files.heal()
        bench.clock.now_ms += 10_000
        for _ in range(2):
            number += 1
            assert peer.call(CreateTopic(f"/default/t{number}", TopicSpec())) == Done()
    about = [record for record in caplog.records if record.name == "danubius.shard.shard"]
    about = [record for record in about if "journal" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in about] == [
        ("ERROR", "journal failed"),
        ("INFO", "journal works again"),
    ] * 2


@pytest.fixture
def failed(bench: Any) -> Any:
    """A broker whose journal has failed, on a disk that works again."""
    bench.files.fail("write", times=100)
    assert isinstance(bench.connect().call(CreateTopic("/default/t", TopicSpec())), Error)
    bench.files.heal()
    assert bench.shard.journal_failure is not None
    return bench


async def test_a_journal_that_nobody_uses_is_found_to_work_again(failed: Any) -> None:
    JournalProbe(failed.shard).look()
    failed.settle()
    assert failed.shard.journal_failure is None
    assert [decode_event(record.body) for record in failed.recover_journal()] == [BARRIER]


async def test_a_probe_of_a_disk_that_still_fails_changes_nothing_and_is_repeated(
    failed: Any,
) -> None:
    probe = JournalProbe(failed.shard)
    failed.files.fail("write", times=100)
    for _ in range(3):
        probe.look()
        failed.settle()
        assert failed.shard.journal_failure is not None
    failed.files.heal()
    probe.look()
    failed.settle()
    assert failed.shard.journal_failure is None


async def test_there_is_one_probe_at_a_time_and_none_of_a_journal_that_works(failed: Any) -> None:
    probe = JournalProbe(failed.shard)
    probe.look()
    probe.look()
    failed.settle()
    probe.look()
    failed.settle()
    assert len(failed.recover_journal()) == 1


async def test_opens_of_one_producer_name_that_fail_together_leave_the_life_before_them(
    bench: Any,
) -> None:
    """Each of the later ones was begun on the one before it, which was never durable."""
    first = bench.connect().call(OpenProducer("/default/t", "p", TopicSpec()))
    assert isinstance(first, ProducerOpened)
    sequencer = bench.shard.topic("/default/t").pipeline.sequencer
    before = sequencer.producer_or_none("p")
    bench.files.fail("write", times=100)
    peer = bench.connect()
    numbers = [peer.ask(OpenProducer("/default/t", "p", TopicSpec())) for _ in range(3)]
    bench.settle()
    bench.files.heal()

    assert all(isinstance(peer.answer_to(number), Error) for number in numbers)
    assert sequencer.producer_or_none("p") is before


async def test_opens_of_a_new_producer_name_that_fail_together_leave_nothing(bench: Any) -> None:
    assert bench.connect().call(CreateTopic("/default/t", TopicSpec())) == Done()
    bench.files.fail("write", times=100)
    peer = bench.connect()
    for _ in range(2):
        peer.ask(OpenProducer("/default/t", "p", TopicSpec()))
    bench.settle()
    bench.files.heal()
    bench.clock.now_ms += 10_000

    assert bench.shard.topic("/default/t").pipeline.sequencer.producers == []
    opened = bench.connect().call(OpenProducer("/default/t", "p", TopicSpec()))
    assert opened.producer_epoch == 1
