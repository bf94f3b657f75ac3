"""The fairness benchmark against a real broker: four processes, every message counted, both sides measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from e2e.broker_process import run_command

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess


def test_a_small_run_counts_every_message_and_leaves_no_topic_behind(broker: BrokerProcess) -> None:
    done = run_command(
        "bench", "fairness", "--topics", "20", "--seconds", "1", "--timeout", "60",
        "--json", "--url", broker.url,
    )  # fmt: skip
    assert done.code == 0, done
    (line,) = done.stdout.splitlines()
    measured = json.loads(line)
    assert measured["kind"] == "fairness"
    assert measured["is_exact"]
    assert measured["topics"] == 20
    assert measured["count"] > 0
    topics = run_command("topics", "list", "--namespace", "bench", "--json", "--url", broker.url)
    assert "fairness" not in topics.stdout
