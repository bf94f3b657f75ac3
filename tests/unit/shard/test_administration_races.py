"""What operators ask for at once: the second finds what the first has taken away, and is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from danubius.admin.table import administer
from danubius.errors import DanubiusError
from danubius.model import admin
from danubius.model.policy import FailurePolicy, Policies
from danubius.model.subscription import EARLIEST
from danubius.model.topic import TopicSpec

TOPIC = "/space/t"
BASE = "/space/p"
REQUESTS: list[admin.AdminRequest] = [
    admin.ListNamespaces(),
    admin.DescribeNamespace("space"),
    admin.CreateNamespace("space", exist_ok=True),
    admin.UpdateNamespace("space", Policies(ttl_ms=0)),
    admin.DeleteNamespace("space", force=True),
    admin.MeasureNamespace("space"),
    admin.ListTopics(),
    admin.UpdateTopic(BASE, partitions=3),
    *[
        request
        for topic in (TOPIC, BASE)
        for request in (
            admin.DescribeTopic(topic),
            admin.CreateTopic(
                topic, TopicSpec(), partitions=0 if topic == TOPIC else 2, exist_ok=True
            ),
            admin.UpdateTopic(topic, Policies(ttl_ms=1)),
            admin.DeleteTopic(topic),
            admin.ListSubscriptions(topic),
            admin.DescribeSubscription(topic, "s"),
            admin.CreateSubscription(topic, "s", exist_ok=True),
            admin.CreateSubscription(topic, "other", exist_ok=True),
            admin.UpdateSubscription(topic, "s", FailurePolicy(redeliveries_max=1)),
            admin.DeleteSubscription(topic, "s", force=True),
            admin.SeekSubscription(topic, "s", EARLIEST),
            admin.SkipMessages(topic, "s", 1),
            admin.ClearBacklog(topic, "s"),
            admin.UnblockSubscription(topic, "s"),
            admin.RedriveDeadLetters(topic, "s"),
            admin.PurgeDeadLetters(topic, "s"),
        )
    ],
]


def ask(bench: Any, request: admin.AdminRequest) -> list[Any]:
    """Where its answer will be."""
    answers: list[Any] = []
    try:
        administer(bench.node, request, answers.append)
    except DanubiusError as error:
        answers.append(error)
    return answers


async def settle(bench: Any, answers: list[list[Any]]) -> None:
    for _ in range(200):
        bench.settle()
        await asyncio.sleep(0)
        if all(answers):
            return


@pytest.mark.parametrize("first", REQUESTS, ids=lambda one: f"{type(one).__name__}")
async def test_of_two_requests_at_once_each_is_answered_once(
    bench: Any, first: admin.AdminRequest
) -> None:
    for second in REQUESTS:
        for request in (
            admin.CreateTopic(TOPIC, exist_ok=True),
            admin.CreateTopic(BASE, partitions=2, exist_ok=True),
            admin.CreateSubscription(TOPIC, "s", exist_ok=True),
            admin.CreateSubscription(BASE, "s", exist_ok=True),
        ):
            await settle(bench, [ask(bench, request)])
        answers = [ask(bench, first), ask(bench, second)]
        await settle(bench, answers)
        assert [len(one) for one in answers] == [1, 1], (first, second, answers)
