"""Calls of Danube's API without a client in between: whatever bytes a test wants, and the status that comes back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from danubius.edge.grpc.messages import danube
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Generator

    from danubius.edge.grpc.messages import Package

DEADLINE_S = HANG_S


class Refusal(Exception):
    """A status that is not OK."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class RawGrpc:
    """One channel."""

    def __init__(self, address: str) -> None:
        self._channel: Any = grpc.insecure_channel(
            address, options=[("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
        )

    def close(self) -> None:
        self._channel.close()

    def call(
        self,
        service: str,
        method: str,
        request: Any | None = None,
        *,
        package: Package = danube,
        raw: bytes | None = None,
        header: tuple[str, str] | None = None,
        **fields: Any,
    ) -> Any:
        """One unary call: a message, its fields, or any bytes instead of it."""
        described = package.service(service).methods_by_name[method]
        if raw is None:
            message = request or GetMessageClass(described.input_type)(**fields)
            raw = message.SerializeToString()
        invoke: Any = self._channel.unary_unary(
            f"/{package.name}.{service}/{method}",
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        try:
            return invoke(
                raw, timeout=DEADLINE_S, metadata=[header] if header is not None else None
            )
        except grpc.RpcError as error:
            raise _refusal(error) from None

    def stream(self, consumer_id: int) -> Any:
        """An open ReceiveMessages; iterate over it, `cancel` it."""
        invoke: Any = self._channel.unary_stream(
            "/danube.ConsumerService/ReceiveMessages",
            response_deserializer=danube.StreamMessage.FromString,
        )
        request = danube.ReceiveRequest(request_id=1, consumer_id=consumer_id)
        return invoke(request.SerializeToString(), timeout=DEADLINE_S)

    # ------------------------------------------------------------ the usual sequences

    def create(self, topic: str, name: str = "raw", *, reliable: bool = True) -> int:
        """Create a producer; returns its number."""
        reply = self.call(
            "ProducerService",
            "CreateProducer",
            request_id=1,
            producer_name=name,
            topic_name=topic,
            dispatch_strategy="Reliable" if reliable else "NonReliable",
        )
        return reply.producer_id

    def create_many(self, topic: str, names: list[str], width: int = 200) -> None:
        """Create producers, many calls at a time."""
        invoke: Any = self._channel.unary_unary("/danube.ProducerService/CreateProducer")
        for start in range(0, len(names), width):
            calls: list[Any] = [
                invoke.future(
                    danube.ProducerRequest(
                        producer_name=name, topic_name=topic, dispatch_strategy="Reliable"
                    ).SerializeToString(),
                    timeout=DEADLINE_S,
                )
                for name in names[start : start + width]
            ]
            for call in calls:
                call.result()

    def send(self, topic: str, payload: bytes, name: str = "raw", **fields: Any) -> int:
        """Send a message; returns the request's number as it was echoed."""
        message = danube.StreamMessage(
            request_id=7,
            msg_id=danube.MsgID(topic_name=topic),
            payload=payload,
            producer_name=name,
            **fields,
        )
        return self.call("ProducerService", "SendMessage", message).request_id

    def subscribe(
        self,
        topic: str,
        subscription: str = "sub",
        consumer: str = "consumer",
        kind: str = "Shared",
        filters: tuple[str, ...] = (),
    ) -> int:
        """Subscribe; returns the consumer's number."""
        reply = self.call(
            "ConsumerService",
            "Subscribe",
            request_id=2,
            topic_name=topic,
            consumer_name=consumer,
            subscription=subscription,
            subscription_type=kind,
            key_filters=filters,
        )
        return reply.consumer_id

    def ack(self, message: Any, subscription: str = "sub") -> None:
        self.call(
            "ConsumerService",
            "Ack",
            request_id=3,
            msg_id=message.msg_id,
            subscription_name=subscription,
        )

    def is_well(self, consumer_id: int) -> bool:
        """What HealthCheck says of a consumer."""
        reply = self.call("HealthCheck", "HealthCheck", request_id=4, client=1, id=consumer_id)
        return reply.status == 0


def _refusal(error: grpc.RpcError) -> Refusal:
    assert isinstance(error, grpc.Call)
    return Refusal(error.code(), error.details() or "")


def end_of(stream: Any) -> Refusal:
    """The status with which a stream ends; it must not deliver anything before."""
    try:
        for message in stream:
            raise AssertionError(f"a message came: {message}")
    except grpc.RpcError as error:
        return _refusal(error)
    raise AssertionError("the stream ended with OK")


@contextlib.contextmanager
def raw_grpc(port: int) -> Generator[RawGrpc]:
    raw = RawGrpc(f"127.0.0.1:{port}")
    try:
        yield raw
    finally:
        raw.close()


@contextlib.contextmanager
def open_stream(raw: RawGrpc, consumer_id: int) -> Generator[Any]:
    """A stream that is cancelled at the end."""
    stream = raw.stream(consumer_id)
    try:
        yield stream
    finally:
        stream.cancel()
