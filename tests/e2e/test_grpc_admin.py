"""Danube's admin API, against a real broker process: brokers, namespaces, topics, and what one broker refuses."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import grpc
import pytest

import danubius
from danubius.model.policy import Policies
from e2e.danube_calls import PACKAGES, Calls, all_methods, calling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

Code = grpc.StatusCode
RELIABLE = 1
_numbers = itertools.count()


@pytest.fixture
def broker(grpc_broker: BrokerProcess) -> BrokerProcess:
    return grpc_broker


@pytest.fixture
async def admin(broker: BrokerProcess) -> AsyncGenerator[Calls]:
    async with calling(broker.admin_port) as calls:
        yield calls


@pytest.fixture
def space() -> str:
    """A namespace of the test's own."""
    return f"grpc-admin-{next(_numbers)}"


# ---------------------------------------------------------------- brokers


async def test_there_is_one_broker_it_is_active_and_it_leads(
    broker: BrokerProcess, admin: Calls
) -> None:
    (one,) = (await admin("BrokerAdmin/ListBrokers")).brokers
    assert 0 < int(one.broker_id) < 2**64
    assert (one.broker_role, one.broker_status) == ("Cluster_Leader", "active")
    assert one.broker_addr.endswith(f":{broker.grpc_port}")
    assert one.admin_addr.endswith(f":{broker.admin_port}")
    assert one.metrics_addr.endswith(f":{broker.http_port}/metrics")
    assert (await admin("BrokerAdmin/GetLeaderBroker")).leader == one.broker_id


async def test_the_number_of_a_broker_stays(start_broker: StartBroker) -> None:
    broker = start_broker(grpc=True)
    async with calling(broker.admin_port) as admin:
        before = (await admin("BrokerAdmin/GetLeaderBroker")).leader
    broker.kill()
    broker.start()
    async with calling(broker.admin_port) as admin:
        assert (await admin("BrokerAdmin/GetLeaderBroker")).leader == before


async def test_one_broker_is_in_balance(admin: Calls) -> None:
    leader = (await admin("BrokerAdmin/GetLeaderBroker")).leader
    balance = await admin("BrokerAdmin/GetClusterBalance")
    (one,) = balance.brokers
    assert (str(one.broker_id), balance.broker_count) == (leader, 1)
    assert balance.coefficient_of_variation == 0
    assert balance.mean_load == balance.max_load == balance.min_load == one.topic_count
    for dry_run in (True, False):
        done = await admin("BrokerAdmin/TriggerRebalance", dry_run=dry_run)
        assert (done.success, done.moves_executed, list(done.proposed_moves)) == (True, 0, [])


async def test_a_broker_is_active_already_and_has_nowhere_to_unload_to(admin: Calls) -> None:
    leader = (await admin("BrokerAdmin/GetLeaderBroker")).leader
    assert (await admin("BrokerAdmin/ActivateBroker", broker_id=leader)).success
    refused = await admin.refusal("BrokerAdmin/UnloadBroker", broker_id=leader)
    assert refused.code() is Code.FAILED_PRECONDITION
    assert "alone" in (refused.details() or "")
    for method in ("BrokerAdmin/UnloadBroker", "BrokerAdmin/ActivateBroker"):
        assert await admin.code(method, broker_id="12345") is Code.NOT_FOUND
        assert await admin.code(method) is Code.INVALID_ARGUMENT


async def test_a_cluster_of_one_is_led_by_itself_and_takes_nobody_in(admin: Calls) -> None:
    leader = int((await admin("BrokerAdmin/GetLeaderBroker")).leader)
    status = await admin("ClusterAdmin/ClusterStatus")
    assert (status.leader_id, status.self_node_id, list(status.voters)) == (leader,) * 2 + (
        [leader],
    )
    assert list(status.learners) == []
    for method in ("AddNode", "PromoteNode", "RemoveNode"):
        refused = await admin.refusal(f"ClusterAdmin/{method}", node_id=7)
        assert refused.code() is Code.FAILED_PRECONDITION
        assert "alone" in (refused.details() or "")


async def test_there_are_no_roles_to_ask_for(admin: Calls) -> None:
    for one in PACKAGES["SecurityAdmin"].service("SecurityAdmin").methods:
        refused = await admin.refusal(f"SecurityAdmin/{one.name}")
        assert refused.code() is Code.FAILED_PRECONDITION
        assert "whoever can connect" in (refused.details() or "")


async def test_every_method_answers_an_empty_request_with_sense(admin: Calls) -> None:
    """Done, or refused with a sentence: never a bare UNIMPLEMENTED, never a failure of the broker."""
    for method in all_methods():
        if not method.partition("/")[0].endswith("Admin"):
            continue
        error = await admin.outcome(method)
        if error is not None:
            assert error.code() in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), method
            assert len(error.details() or "") > 15, method


# ---------------------------------------------------------------- namespaces


async def test_a_namespace_comes_and_goes(admin: Calls, space: str) -> None:
    async def listed() -> list[str]:
        return list((await admin("BrokerAdmin/ListNamespaces")).namespaces)

    assert (await admin("NamespaceAdmin/CreateNamespace", name=space)).success
    assert (await listed()).count(space) == 1
    assert {"default", "system"} <= set(await listed())
    assert await admin.code("NamespaceAdmin/CreateNamespace", name=space) is Code.ALREADY_EXISTS
    assert list((await admin("NamespaceAdmin/GetNamespaceTopics", name=space)).topics) == []
    assert (await admin("NamespaceAdmin/DeleteNamespace", name=f"/{space}")).success
    assert space not in await listed()
    for method in (
        "NamespaceAdmin/DeleteNamespace",
        "NamespaceAdmin/GetNamespaceTopics",
        "NamespaceAdmin/GetNamespacePolicies",
        "TopicAdmin/ListNamespaceTopics",
    ):
        assert await admin.code(method, name=space) is Code.NOT_FOUND, method
        assert await admin.code(method, name="not.a.name") is Code.INVALID_ARGUMENT, method


async def test_a_namespace_with_topics_stays(admin: Calls, space: str) -> None:
    name = f"/{space}/t"
    await admin("NamespaceAdmin/CreateNamespace", name=space)
    await admin("TopicAdmin/CreateTopic", name=name)
    refused = await admin.refusal("NamespaceAdmin/DeleteNamespace", name=space)
    assert refused.code() is Code.FAILED_PRECONDITION
    assert name in (refused.details() or "")
    await admin("TopicAdmin/DeleteTopic", name=name)
    assert (await admin("NamespaceAdmin/DeleteNamespace", name=space)).success
    assert (
        await admin.code("NamespaceAdmin/DeleteNamespace", name="default") is Code.INVALID_ARGUMENT
    )


async def test_policies_of_a_namespace_are_what_holds(
    broker: BrokerProcess, admin: Calls, space: str
) -> None:
    async with danubius.connect(broker.url) as client:
        await client.admin.create_namespace(space, Policies(producers_max=7))
    told = json.loads((await admin("NamespaceAdmin/GetNamespacePolicies", name=space)).policies)
    assert told["max_producers_per_topic"] == 7
    assert told["max_message_size"] > 0


# ---------------------------------------------------------------- topics


async def test_topics_are_listed_each_once_with_how_they_deliver(
    broker: BrokerProcess, admin: Calls, space: str
) -> None:
    await admin("NamespaceAdmin/CreateNamespace", name=space)
    await admin("TopicAdmin/CreateTopic", name=f"/{space}/foo", dispatch_strategy=RELIABLE)
    await admin("TopicAdmin/CreateTopic", name=f"/{space}/foobar")
    await admin(
        "TopicAdmin/CreatePartitionedTopic",
        base_name=f"/{space}/p",
        partitions=2,
        dispatch_strategy=RELIABLE,
    )
    leader = (await admin("BrokerAdmin/GetLeaderBroker")).leader
    expected = [
        (f"/{space}/foo", leader, "Reliable"),
        (f"/{space}/foobar", leader, "NonReliable"),
        (f"/{space}/p-part-0", leader, "Reliable"),
        (f"/{space}/p-part-1", leader, "Reliable"),
    ]
    listed = await admin("TopicAdmin/ListNamespaceTopics", name=space)
    assert [(one.name, one.broker_id, one.delivery) for one in listed.topics] == expected
    everywhere = await admin("TopicAdmin/ListBrokerTopics", broker_id=leader)
    here = [
        (one.name, one.broker_id, one.delivery)
        for one in everywhere.topics
        if one.name.startswith(f"/{space}/")
    ]
    assert here == expected
    names = await admin("NamespaceAdmin/GetNamespaceTopics", name=space)
    assert list(names.topics) == [one[0] for one in expected]
    assert await admin.code("TopicAdmin/ListBrokerTopics", broker_id="1") is Code.NOT_FOUND
    async with danubius.connect(broker.url) as client:
        described = await client.admin.describe_topic(f"/{space}/foo")
        assert described.dispatch == "reliable"


async def test_more_topics_than_a_page_are_all_listed(admin: Calls, space: str) -> None:
    await admin("NamespaceAdmin/CreateNamespace", name=space)
    await admin("TopicAdmin/CreatePartitionedTopic", base_name=f"/{space}/many", partitions=250)
    listed = await admin("NamespaceAdmin/GetNamespaceTopics", name=space)
    assert sorted(listed.topics) == sorted(f"/{space}/many-part-{one}" for one in range(250))


async def test_a_partitioned_topic_is_deleted_as_a_whole(admin: Calls, space: str) -> None:
    base = f"/{space}/p"
    await admin("NamespaceAdmin/CreateNamespace", name=space)
    await admin("TopicAdmin/CreatePartitionedTopic", base_name=base, partitions=3)
    one = f"{base}-part-1"
    assert (await admin("TopicAdmin/DescribeTopic", name=one)).name == one
    assert await admin.code("TopicAdmin/DeleteTopic", name=one) is Code.INVALID_ARGUMENT
    assert await admin.code("TopicAdmin/CreateTopic", name=base) is Code.ALREADY_EXISTS
    assert await admin.code("TopicAdmin/CreateTopic", name=one) is Code.ALREADY_EXISTS
    assert (await admin("TopicAdmin/DeleteTopic", name=base)).success
    assert list((await admin("NamespaceAdmin/GetNamespaceTopics", name=space)).topics) == []
    assert await admin.code("TopicAdmin/DeleteTopic", name=base) is Code.NOT_FOUND


async def test_what_cannot_be_a_topic_is_refused_with_a_sentence(admin: Calls, topic: str) -> None:
    bad = ["", "/", "t", "/default", "/default/", "/default/a.b", "default/t", "/a/b/c", "//t"]
    bad.append("/default/" + "x" * 300)
    for name in bad:
        for method in ("CreateTopic", "DeleteTopic", "DescribeTopic", "ListSubscriptions"):
            refused = await admin.refusal(f"TopicAdmin/{method}", name=name)
            assert refused.code() is Code.INVALID_ARGUMENT, (method, name)
            assert len(refused.details() or "") > 30, (method, name)
    assert (
        await admin.code("TopicAdmin/CreateTopic", name=topic, dispatch_strategy=7)
        is Code.INVALID_ARGUMENT
    )
    for partitions in (0, 1001, 2**32 - 1):
        assert (
            await admin.code(
                "TopicAdmin/CreatePartitionedTopic", base_name=topic, partitions=partitions
            )
            is Code.INVALID_ARGUMENT
        )
    refused = await admin.refusal("TopicAdmin/CreateTopic", name=topic, schema_subject="orders")
    assert refused.code() is Code.FAILED_PRECONDITION
    assert "schema registry" in (refused.details() or "")
    for method in ("DeleteTopic", "DescribeTopic", "ListSubscriptions", "UnloadTopic"):
        assert await admin.code(f"TopicAdmin/{method}", name=topic) is Code.NOT_FOUND, method


async def test_a_topic_exists_once(admin: Calls, topic: str) -> None:
    await admin("TopicAdmin/CreateTopic", name=topic, dispatch_strategy=RELIABLE)
    for strategy in (0, RELIABLE):
        assert (
            await admin.code("TopicAdmin/CreateTopic", name=topic, dispatch_strategy=strategy)
            is Code.ALREADY_EXISTS
        )
