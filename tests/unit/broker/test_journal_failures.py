"""A journal that fails, as the log tells it: when it began and when it was over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from danubius.model.topic import TopicSpec
from danubius.wire.commands import CreateTopic, Done, Error

if TYPE_CHECKING:
    import pytest


async def test_a_failing_journal_is_logged_once_until_it_works_again(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "danubius.broker.broker")
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
    about = [record for record in caplog.records if record.name == "danubius.broker.broker"]
    about = [record for record in about if "journal" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in about] == [
        ("ERROR", "journal failed"),
        ("INFO", "journal works again"),
    ] * 2
