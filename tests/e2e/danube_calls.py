"""Calls of Danube's gRPC API, one by one: for what its own clients would never say, or hide behind their retries."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from danubius.edge.grpc.messages import danube, danube_admin, danube_schema
from e2e.grpc_loop import GrpcStream, on_grpc_loop
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PACKAGES = {
    "ProducerService": danube,
    "ConsumerService": danube,
    "Discovery": danube,
    "HealthCheck": danube,
    "StorageService": danube,
    "SchemaRegistry": danube_schema,
    "BrokerAdmin": danube_admin,
    "ClusterAdmin": danube_admin,
    "NamespaceAdmin": danube_admin,
    "TopicAdmin": danube_admin,
    "SecurityAdmin": danube_admin,
}
CALL_S = HANG_S
"""No call may take longer, however slow the machine is."""


class Calls:
    """A channel to one port."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    async def __call__(self, method: str, **fields: Any) -> Any:
        """`calls("TopicAdmin/CreateTopic", name=…)`: the answer, or an AioRpcError."""
        descriptor = describe(method)
        request = GetMessageClass(descriptor.input_type)(**fields)
        return await self.raw(method, request.SerializeToString())

    async def raw(self, method: str, request: bytes) -> Any:
        """Any bytes in the place of a request."""
        descriptor = describe(method)
        call = self._channel.unary_unary(
            path_of(method),
            request_serializer=bytes,
            response_deserializer=GetMessageClass(descriptor.output_type).FromString,
        )

        async def invoke() -> Any:
            return await call(request, timeout=CALL_S)

        return await on_grpc_loop(invoke())

    def stream(self, method: str, request: bytes = b"", **fields: Any) -> GrpcStream:
        """A call that is answered by many messages: `read()` them, and `cancel()` it."""
        descriptor = describe(method)
        if fields:
            request = GetMessageClass(descriptor.input_type)(**fields).SerializeToString()
        call = self._channel.unary_stream(
            path_of(method),
            request_serializer=bytes,
            response_deserializer=GetMessageClass(descriptor.output_type).FromString,
        )
        return GrpcStream(lambda: call(request))

    async def code(self, method: str, **fields: Any) -> grpc.StatusCode:
        """With which status a call ends."""
        return (await self.refusal(method, **fields)).code()

    async def outcome(self, method: str, **fields: Any) -> aio.AioRpcError | None:
        """Why a call fails; None: it does not."""
        try:
            await self(method, **fields)
        except aio.AioRpcError as error:
            return error
        return None

    async def refusal(self, method: str, **fields: Any) -> aio.AioRpcError:
        """Why a call fails; it must."""
        error = await self.outcome(method, **fields)
        assert error is not None, f"{method} was answered"
        return error


def describe(method: str) -> Any:
    """The descriptor of `Service/Method`."""
    service, name = method.split("/")
    return PACKAGES[service].service(service).methods_by_name[name]


def path_of(method: str) -> str:
    service, name = method.split("/")
    return f"/{PACKAGES[service].service(service).full_name}/{name}"


def all_methods() -> list[str]:
    """Every method of every service."""
    return [
        f"{service}/{method.name}"
        for service, package in PACKAGES.items()
        for method in package.service(service).methods
    ]


@asynccontextmanager
async def calling(port: int) -> AsyncGenerator[Calls]:
    """A connection of its own: grpc would share one between channels to the same port."""
    options = [("grpc.use_local_subchannel_pool", 1)]

    async def connect() -> aio.Channel:
        return aio.insecure_channel(f"127.0.0.1:{port}", options=options)

    channel = await on_grpc_loop(connect())
    try:
        yield Calls(channel)
    finally:
        await on_grpc_loop(channel.close())
