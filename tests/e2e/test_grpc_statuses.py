"""Danube's API by hand: every wrong request has its status and a sentence, every right one its answer."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from danubius.edge.grpc.messages import danube
from e2e.broker_process import BrokerProcess, environment, run_command
from e2e.danube_process import PYTHON
from e2e.raw_grpc import RawGrpc, Refusal, raw_grpc
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_Code = grpc.StatusCode


@pytest.fixture
def raw(grpc_broker: BrokerProcess) -> Iterator[RawGrpc]:
    with raw_grpc(grpc_broker.grpc_port) as channel:
        yield channel


@pytest.mark.parametrize("service", ["ProducerService", "ConsumerService", "Discovery"])
def test_bytes_that_are_no_request_are_refused_with_a_sentence(raw: RawGrpc, service: str) -> None:
    for method in danube.service(service).methods:
        if method.name == "ReceiveMessages":
            continue
        with pytest.raises(Refusal, match=method.input_type.full_name) as refused:
            raw.call(service, method.name, raw=b"\xff\xff\xff not a message")
        assert refused.value.code is _Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "name", ["", "/", "orders", "/default/a.b", "/default/a/b", "//t", "/default/ö", "a/b/c"]
)
def test_a_topic_name_that_cannot_be_is_refused_everywhere(raw: RawGrpc, name: str) -> None:
    msg_id = danube.MsgID(topic_name=name)
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("Discovery", "TopicLookup", {"topic": name}),
        ("Discovery", "TopicPartitions", {"topic": name}),
        ("ProducerService", "CreateProducer", {"topic_name": name, "producer_name": "p"}),
        ("ProducerService", "SendMessage", {"msg_id": msg_id, "producer_name": "p"}),
        ("ConsumerService", "Subscribe",
         {"topic_name": name, "consumer_name": "c", "subscription": "s"}),
        ("ConsumerService", "Ack", {"msg_id": msg_id, "subscription_name": "s"}),
        ("ConsumerService", "Nack", {"msg_id": msg_id, "subscription_name": "s"}),
        ("StorageService", "ListSegmentDescriptors", {"topic": name}),
    ]  # fmt: skip
    for service, method, fields in calls:
        with pytest.raises(Refusal, match=r"topic|namespace") as refused:
            raw.call(service, method, **fields)
        assert refused.value.code is _Code.INVALID_ARGUMENT, method


def test_a_topic_that_does_not_exist_is_not_found(raw: RawGrpc, topic: str) -> None:
    msg_id = danube.MsgID(topic_name=topic)
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("Discovery", "TopicLookup", {"topic": topic}),
        ("ProducerService", "SendMessage", {"msg_id": msg_id, "producer_name": "p"}),
        ("ConsumerService", "Subscribe",
         {"topic_name": topic, "consumer_name": "c", "subscription": "s"}),
        ("ConsumerService", "Ack", {"msg_id": msg_id, "subscription_name": "s"}),
        ("StorageService", "ListSegmentDescriptors", {"topic": topic}),
    ]  # fmt: skip
    for service, method, fields in calls:
        with pytest.raises(Refusal, match=topic) as refused:
            raw.call(service, method, **fields)
        assert refused.value.code is _Code.NOT_FOUND, method


def test_what_a_request_lacks_is_said(raw: RawGrpc, topic: str) -> None:
    raw.create(topic)
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("ProducerService", "SendMessage", {"producer_name": "p"}),
        ("ProducerService", "SendMessage", {"msg_id": danube.MsgID(topic_name=topic)}),
        ("ProducerService", "CreateProducer", {"topic_name": topic}),
        ("ProducerService", "CreateProducer",
         {"topic_name": topic, "producer_name": "p", "dispatch_strategy": 9}),
        ("ConsumerService", "Subscribe", {"topic_name": topic, "subscription": "s"}),
        ("ConsumerService", "Subscribe", {"topic_name": topic, "consumer_name": "c"}),
        ("ConsumerService", "Subscribe",
         {"topic_name": topic, "consumer_name": "c", "subscription": "s", "subscription_type": 7}),
        ("ConsumerService", "Ack", {"subscription_name": "s"}),
        ("ConsumerService", "Nack", {"subscription_name": "s"}),
        ("HealthCheck", "HealthCheck", {"client": 5}),
    ]  # fmt: skip
    for service, method, fields in calls:
        with pytest.raises(Refusal) as refused:
            raw.call(service, method, **fields)
        assert refused.value.code is _Code.INVALID_ARGUMENT, (method, fields)
        assert len(refused.value.message) > 15


def test_a_lookup_answers_with_an_address_that_can_be_dialled(
    raw: RawGrpc, grpc_broker: BrokerProcess, topic: str
) -> None:
    raw.create(topic)
    found = raw.call("Discovery", "TopicLookup", request_id=9, topic=topic)
    assert (found.request_id, found.response_type) == (9, 1)
    assert found.connect_url == found.broker_url == grpc_broker.grpc_url
    assert not found.proxy


def test_a_topic_is_not_taken_for_another_whose_name_begins_the_same(
    raw: RawGrpc, topic: str
) -> None:
    for name in (topic, f"{topic}bar", f"{topic}-parts"):
        raw.create(name)
    for index in range(2):
        raw.create(f"{topic}-split-part-{index}")
    for name, names in (
        (topic, [topic]),
        (f"{topic}bar", [f"{topic}bar"]),
        (f"{topic}-split", [f"{topic}-split-part-0", f"{topic}-split-part-1"]),
        (f"{topic}-split-part-1", [f"{topic}-split-part-1"]),
    ):
        found = raw.call("Discovery", "TopicPartitions", request_id=3, topic=name)
        assert list(found.partitions) == names


def test_a_partition_beyond_the_others_makes_those_between(raw: RawGrpc, topic: str) -> None:
    raw.create(f"{topic}-part-2")
    raw.create(f"{topic}-part-0")
    raw.create(f"{topic}-part-3")
    found = raw.call("Discovery", "TopicPartitions", topic=topic)
    assert list(found.partitions) == [f"{topic}-part-{index}" for index in range(4)]


def test_a_partition_of_a_plain_topic_is_refused(raw: RawGrpc, topic: str) -> None:
    raw.create(topic)
    with pytest.raises(Refusal, match="partitioned") as refused:
        raw.create(f"{topic}-part-0")
    assert refused.value.code is _Code.ALREADY_EXISTS


def test_numbers_are_the_same_for_the_same_names(raw: RawGrpc, topic: str) -> None:
    assert raw.create(topic, "p") == raw.create(topic, "p") != raw.create(topic, "q")
    assert raw.subscribe(topic, consumer="a") == raw.subscribe(topic, consumer="a")
    assert raw.subscribe(topic, consumer="a") != raw.subscribe(topic, consumer="b")


def test_a_publish_time_that_cannot_be_is_refused(raw: RawGrpc, topic: str) -> None:
    raw.create(topic)
    with pytest.raises(Refusal, match="publish_time") as refused:
        raw.send(topic, b"x", publish_time=2**63)
    assert refused.value.code is _Code.INVALID_ARGUMENT


def test_no_segments_are_in_an_object_store(raw: RawGrpc, topic: str) -> None:
    raw.create(topic)
    reply = raw.call("StorageService", "ListSegmentDescriptors", topic=topic)
    assert not reply.segments


def test_standard_health_and_reflection(grpc_broker: BrokerProcess) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{grpc_broker.grpc_port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "danube.ProducerService", "danube.ConsumerService"):
            reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=HANG_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        names = set(database.get_services())
        assert {
            "danube.ProducerService", "danube.ConsumerService", "danube.Discovery",
            "danube.HealthCheck", "danube.StorageService", "danube_schema.SchemaRegistry",
            "grpc.health.v1.Health",
        } <= names  # fmt: skip
        file = database.FindFileContainingSymbol("danube.StreamMessage")
        assert file.package == "danube"


def test_a_port_that_is_taken_is_said(grpc_broker: BrokerProcess, data_dir: Path) -> None:
    done = run_command(
        "standalone", "--data-dir", str(data_dir), "--port", "0", "--http-port", "0",
        "--set", "server.grpc=true", "--grpc-port", str(grpc_broker.grpc_port), "--admin-port", "0",
    )  # fmt: skip
    assert done.code == 1
    assert f"cannot listen on 127.0.0.1:{grpc_broker.grpc_port} for gRPC" in done.stderr


def test_the_official_client_may_be_imported_beside_the_broker() -> None:
    (packages,) = PYTHON.parent.parent.glob("lib/python*/site-packages")
    program = (
        f"import sys; sys.path.append({str(packages)!r})\n"
        "from danubius.edge.grpc.messages import danube\n"
        "ours = danube.StreamMessage(payload=b'x')\n"
        "from danube.proto import DanubeApi_pb2\n"
        "theirs = DanubeApi_pb2.StreamMessage.FromString(ours.SerializeToString())\n"
        "assert theirs.payload == b'x' and type(theirs) is not type(ours)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_the_extra_the_rest_is_served_and_the_log_says_so(data_dir: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['grpc'] = None   # as if it were not installed\n"
        "from danubius.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "standalone", "--data-dir", str(data_dir), "--port", "0",
         "--http-port", "0", "--set", "server.grpc=true"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("danubius ready")
            process.terminate()
            _, log = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "clients of Danube are not served: pip install 'danubius[grpc]'" in log
