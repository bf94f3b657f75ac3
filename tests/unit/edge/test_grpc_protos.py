"""The protos: what is shipped is what is written, and it is Danube's API number by number."""

from __future__ import annotations

import importlib
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from danubius.edge.grpc.messages import danube

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = resources.files("danubius.edge.grpc") / "protos"
_NAMES = sorted(one.name[:-6] for one in _FOLDER.iterdir() if one.name.endswith(".proto"))


@pytest.mark.parametrize("name", _NAMES)
def test_what_is_shipped_was_compiled_from_what_is_written(name: str, tmp_path: Path) -> None:
    target = tmp_path / "set"
    protoc: Any = importlib.import_module("grpc_tools.protoc")  # it has no types
    code = protoc.main(
        ["protoc", f"-I{_FOLDER}", f"--descriptor_set_out={target}", f"{_FOLDER}/{name}.proto"]
    )
    assert code == 0
    shipped = FileDescriptorSet.FromString((_FOLDER / f"{name}.binpb").read_bytes())
    assert FileDescriptorSet.FromString(target.read_bytes()) == shipped, "run `make protos`"


# ruff: noqa: ISC004
@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("ProducerRequest",
         "request_id=1 producer_name=2 topic_name=3 schema_ref=4 "
         "producer_access_mode=5 dispatch_strategy=6"),
        ("SchemaReference", "subject=1 use_latest=2 pinned_version=3 min_version=4"),
        ("ProducerResponse", "request_id=1 producer_id=2 producer_name=3"),
        ("MessageResponse", "request_id=1"),
        ("ConsumerRequest",
         "request_id=1 topic_name=2 consumer_name=3 subscription=4 "
         "subscription_type=5 key_filters=6"),
        ("ConsumerResponse", "request_id=1 consumer_id=2 consumer_name=3"),
        ("ReceiveRequest", "request_id=1 consumer_id=2"),
        ("StreamMessage",
         "request_id=1 msg_id=2 payload=3 publish_time=4 producer_name=5 "
         "subscription_name=6 attributes=7 schema_id=8 schema_version=9 routing_key=10"),
        ("MsgID", "producer_id=1 topic_name=2 broker_addr=3 topic_offset=5"),
        ("AckRequest", "request_id=1 msg_id=2 subscription_name=3"),
        ("NackRequest", "request_id=1 msg_id=2 subscription_name=3 delay_ms=4 reason=5"),
        ("TopicLookupRequest", "request_id=1 topic=2"),
        ("TopicLookupResponse", "request_id=3 response_type=4 connect_url=5 broker_url=6 proxy=7"),
        ("TopicPartitionsResponse", "request_id=1 partitions=2"),
        ("HealthCheckRequest", "request_id=1 client=2 id=3"),
        ("HealthCheckResponse", "status=1"),
        ("ListSegmentDescriptorsRequest", "topic=1 after_offset=2"),
        ("SegmentDescriptorProto",
         "segment_id=1 start_offset=2 end_offset=3 size=4 etag=5 "
         "created_at=6"),
    ],
)  # fmt: skip
def test_fields_have_danubes_numbers(message: str, fields: str) -> None:
    described = getattr(danube, message).DESCRIPTOR
    assert " ".join(f"{one.name}={one.number}" for one in described.fields) == fields


def test_enums_have_danubes_numbers() -> None:
    assert danube.enum("DispatchStrategy") == {"NonReliable": 0, "Reliable": 1}
    assert danube.enum("ProducerAccessMode") == {"Shared": 0, "Exclusive": 1}
    assert danube.enum("ConsumerRequest.SubscriptionType") == {
        "Exclusive": 0, "Shared": 1, "Failover": 2, "KeyShared": 3,
    }  # fmt: skip
    assert danube.enum("TopicLookupResponse.LookupType") == {
        "Redirect": 0,
        "Connect": 1,
        "Failed": 2,
    }
    assert danube.enum("HealthCheckResponse.ClientStatus") == {"OK": 0, "CLOSE": 1}


def test_a_message_that_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="danube has no message Nothing"):
        _ = danube.Nothing
