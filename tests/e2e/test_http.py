"""Health, readiness and metrics on the HTTP port."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.traffic import numbered, take
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="[^"]*"'
SAMPLE = re.compile(
    rf"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{{{LABEL}(,{LABEL})*\}})? [-+0-9.eEinfNa]+( \d+)?$"
)


@dataclass
class Answer:
    """What the HTTP port said."""

    status: int
    body: str
    content_type: str


def get(url: str) -> Answer:
    try:
        with urllib.request.urlopen(url, timeout=HANG_S) as response:
            return Answer(
                response.status, response.read().decode(), response.headers["content-type"]
            )
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(), error.headers["content-type"])


def metrics(broker: BrokerProcess) -> dict[str, float]:
    answer = get(broker.http_url + "/metrics")
    assert answer.status == 200
    found: dict[str, float] = {}
    for line in answer.body.splitlines():
        if line and not line.startswith("#"):
            assert SAMPLE.match(line), line
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_healthy_broker_says_so_in_json(broker: BrokerProcess, path: str) -> None:
    answer = get(broker.http_url + path)
    assert answer.status == 200
    assert "json" in answer.content_type
    assert json.loads(answer.body)


def test_unknown_path_is_404(broker: BrokerProcess) -> None:
    assert get(broker.http_url + "/no-such-page").status == 404


async def test_metrics_count_what_happened(broker: BrokerProcess, topic: str) -> None:
    """Prometheus text; something about messages rises by what was sent and delivered."""
    before = await asyncio.to_thread(metrics, broker)
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s", start="earliest") as consumer,
    ):
        await producer.send_many(numbered(1_234))
        await take(consumer, 1_234)
        after = await asyncio.to_thread(metrics, broker)
    assert all(name.startswith(("danubius_", "process_", "python_")) for name in after)
    rises = {name: after[name] - before.get(name, 0.0) for name in after}
    risen = {name for name, rise in rises.items() if rise == 1_234}
    assert len(risen) >= 2, f"messages published and delivered are counted: {rises}"


async def test_metrics_are_served_under_load(broker: BrokerProcess, topic: str) -> None:
    async with (
        danubius.connect(broker.url) as client,
        client.producer(topic) as producer,
        asyncio.timeout(HANG_S),
        asyncio.TaskGroup() as tasks,
    ):
        sending = tasks.create_task(producer.send_many([bytes(1_000)] * 50_000))
        scrapes = 0
        while not sending.done():
            await asyncio.to_thread(metrics, broker)
            scrapes += 1
    assert scrapes > 0
