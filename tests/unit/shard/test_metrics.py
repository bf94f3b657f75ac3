"""What /metrics says: every declared metric once, in the text format, bounded, and counters that never fall."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from danubius.app import metric_catalogue
from danubius.app.loop_lag import BOUNDS_S, LoopLag
from danubius.app.metric_catalogue import Kind, all_metrics
from danubius.app.metrics import Metrics, labels
from danubius.edge.rest.measuring import RequestFigures
from danubius.model.policy import Policies
from danubius.model.subscription import AtEarliest, SubscriptionType
from danubius.model.topic import Dispatch, TopicSpec
from danubius.runtime.histogram import Histogram
from danubius.wire.commands import Ack, CreateTopic, DeleteTopic, Flow, Nack, Subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Scrape = Callable[[], Coroutine[Any, Any, dict[str, float]]]

TOPIC = "/default/orders"


class Edge:
    """Connections, as the metrics see them."""

    def __init__(self) -> None:
        self.connections: dict[object, None] = {}
        self.refusals = 0


class Checkpoints:
    """A checkpointer, as the metrics see it."""

    checkpoints = 3
    failures = 1
    age_s = 2.5


@pytest.fixture
def requests() -> RequestFigures:
    return RequestFigures()


@pytest.fixture
def scrape(bench: Any, requests: RequestFigures) -> Scrape:
    edge: Any = Edge()
    checkpointer: Any = Checkpoints()
    metrics = Metrics(
        bench.node, edge, checkpointer, LoopLag(bench.shard.loop), requests, lambda: None
    )

    async def render() -> dict[str, float]:
        text = (await metrics.render())[0].decode()
        return {
            sample.name + "".join(f"|{value}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return render


def subscribe(peer: Any, topic: str = TOPIC, name: str = "s") -> int:
    command = Subscribe(topic, name, SubscriptionType.SHARED, "c", AtEarliest())
    handle = peer.call(command).handle
    peer.session.handle(Flow(handle, 100, 1 << 20), 0, memoryview(b""))
    return handle


async def test_every_declared_metric_is_told(
    bench: Any, scrape: Scrape, requests: RequestFigures
) -> None:
    requests.add("GET", "/api/v1/topics", 200, 0.1)
    peer = bench.connect()
    spec = TopicSpec(dispatch=Dispatch.NON_RELIABLE, policies=Policies(producers_max=1))
    peer.call(CreateTopic("/default/live", spec))
    peer.publish(TOPIC, [b"x"])
    subscribe(peer)
    told = {name.partition("|")[0] for name in await scrape()}
    for metric in all_metrics():
        is_plain = metric.kind is not Kind.HISTOGRAM
        assert (metric.name if is_plain else f"{metric.name}_bucket") in told


async def test_scrapes_at_once_count_nothing_twice(bench: Any, scrape: Scrape) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"x"] * 5)
    handle = subscribe(peer)
    bench.settle()
    async with asyncio.TaskGroup() as tasks:
        scrapes = [tasks.create_task(scrape()) for _ in range(3)]
        peer.session.handle(Ack(handle, [(0, 5)]), 0, memoryview(b""))
    assert [one.result()["danubius_acked_messages_total"] for one in scrapes] == [5, 5, 5]


async def test_the_figures_of_a_subscription(bench: Any, scrape: Scrape) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"%d" % n for n in range(10)])
    handle = subscribe(peer)
    bench.settle()
    peer.session.handle(Ack(handle, [(0, 4)]), 0, memoryview(b""))
    peer.session.handle(Nack(handle, [(4, 6)], 60_000), 0, memoryview(b""))
    found = await scrape()
    key = f"|{TOPIC}|s"
    assert found[f"danubius_subscription_backlog_messages{key}"] == 6
    assert found[f"danubius_subscription_unacked_messages{key}"] == 4
    assert found[f"danubius_subscription_waiting_messages{key}"] == 2
    assert found[f"danubius_subscription_delivered_messages_total{key}"] == 10
    assert found[f"danubius_subscription_acked_messages_total{key}"] == 4
    assert found[f"danubius_subscription_consumers{key}"] == 1
    assert found[f"danubius_topic_published_messages_total|{TOPIC}"] == 10
    assert found["danubius_acked_messages_total"] == 4
    assert found["danubius_nacked_messages_total"] == 2
    assert found["danubius_backlog_messages"] == 6
    assert found["danubius_checkpoints_total"] == 3
    assert found["danubius_checkpoint_failures_total"] == 1
    assert found["danubius_storage_failing|journal"] == 0


async def test_what_no_key_filter_takes_shows_until_somebody_does(
    bench: Any, scrape: Scrape
) -> None:
    peer = bench.connect()
    peer.publish(TOPIC, [b"x"] * 4, keys=[b"eu-1", b"us-1", b"us-2", b"eu-2"])

    def attach(consumer: str, key_filter: str) -> None:
        command = Subscribe(
            TOPIC,
            "s",
            SubscriptionType.KEY_SHARED,
            consumer,
            AtEarliest(),
            key_filters=(key_filter,),
        )
        peer.session.handle(Flow(peer.call(command).handle, 100, 1 << 20), 0, memoryview(b""))
        bench.settle()

    attach("europe", "eu-*")
    found = await scrape()
    assert found[f"danubius_subscription_unmatched_messages|{TOPIC}|s"] == 2
    assert found["danubius_unmatched_messages"] == 2
    attach("america", "us-*")
    found = await scrape()
    assert found[f"danubius_subscription_unmatched_messages|{TOPIC}|s"] == 0
    assert found["danubius_unmatched_messages"] == 0


async def test_totals_do_not_fall_when_a_topic_is_deleted(bench: Any, scrape: Scrape) -> None:
    peer = bench.connect()
    for topic in (TOPIC, "/default/other"):
        peer.publish(topic, [b"a"] * 5)
        handle = subscribe(peer, topic)
        bench.settle()
        peer.session.handle(Ack(handle, [(0, 5)]), 0, memoryview(b""))
    assert (await scrape())["danubius_acked_messages_total"] == 10
    peer.call(DeleteTopic(TOPIC))
    found = await scrape()
    assert found["danubius_acked_messages_total"] == 10
    assert f"danubius_topic_end_offset|{TOPIC}" not in found


async def test_series_are_bounded_and_the_rest_is_counted(
    bench: Any, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_catalogue, "TOPICS_MAX", 3)
    monkeypatch.setattr(metric_catalogue, "SUBSCRIPTIONS_MAX", 2)
    peer = bench.connect()
    for number in range(5):
        peer.publish(f"/default/t{number}", [b"x" * 1000] * (number + 1))
        subscribe(peer, f"/default/t{number}")
    found = await scrape()
    shown = sorted(name for name in found if name.startswith("danubius_topic_end_offset"))
    assert shown == [f"danubius_topic_end_offset|/default/t{n}" for n in (2, 3, 4)]
    backlogs = [name for name in found if name.startswith("danubius_subscription_backlog_messages")]
    assert sorted(backlogs) == [
        f"danubius_subscription_backlog_messages|/default/t{n}|s" for n in (3, 4)
    ]
    assert found["danubius_topics_without_series"] == 2
    assert found["danubius_backlog_messages"] == 1 + 2 + 3 + 4 + 5


async def test_what_non_reliable_topics_lose_shows(bench: Any, scrape: Scrape) -> None:
    peer = bench.connect()
    peer.call(CreateTopic("/default/live", TopicSpec(dispatch=Dispatch.NON_RELIABLE)))
    assert (await scrape())["danubius_topic_dropped_messages_total|/default/live"] == 0


def test_label_values_are_escaped() -> None:
    metric = all_metrics()[0]
    assert metric.kind is Kind.GAUGE
    assert labels(metric, 'a"b\\c\n', "v") == '{broker="a\\"b\\\\c\\n",version="v"}'


def test_lag_falls_into_the_bucket_of_its_bound() -> None:
    histogram = Histogram(BOUNDS_S)
    for lag_s in (0.0, 0.001, 0.0011, 3.0, -1.0):
        histogram.add(lag_s)
    assert histogram.counts == [3, 1, *[0] * (len(BOUNDS_S) - 2), 1]


async def test_the_histogram_of_the_loop_is_cumulative(bench: Any, scrape: Scrape) -> None:
    found = await scrape()
    assert found["danubius_loop_lag_seconds_count"] == 0
    assert found["danubius_loop_lag_seconds_bucket|+Inf"] == 0


async def test_requests_are_told_by_method_route_and_status(
    scrape: Scrape, requests: RequestFigures
) -> None:
    for status, duration_s in ((200, 0.0005), (204, 0.003), (404, 99.0), (None, 0.3)):
        requests.add("GET", "/api/v1/topics/{namespace}/{topic}", status, duration_s)
    requests.add("BREW", "unknown", 404, 0.0)
    found = await scrape()
    asked = "|GET|/api/v1/topics/{namespace}/{topic}"
    counts = {
        name: value for name, value in found.items() if name.startswith("danubius_rest_requests")
    }
    assert counts == {
        f"danubius_rest_requests_total{asked}|2xx": 2,
        f"danubius_rest_requests_total{asked}|4xx": 1,
        f"danubius_rest_requests_total{asked}|none": 1,
        "danubius_rest_requests_total|other|unknown|4xx": 1,
    }
    duration = "danubius_rest_request_duration_seconds"
    assert found[f"{duration}_bucket{asked}|0.001"] == 1
    assert found[f"{duration}_bucket{asked}|0.0025"] == 1
    assert found[f"{duration}_bucket{asked}|0.005"] == 2
    assert found[f"{duration}_bucket{asked}|10.0"] == 3
    assert found[f"{duration}_bucket{asked}|+Inf"] == 4
    assert found[f"{duration}_count{asked}"] == 4
    assert found[f"{duration}_sum{asked}"] == pytest.approx(99.3035)
