"""The services that every gRPC server should have: health for orchestrators, reflection for tools like grpcurl.

Their requests are read in the same turns as all others: they are as good a place to leave a message unfinished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from danubius.edge.grpc.messages import POOL, load_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from grpc import aio

    from danubius.edge.grpc.front.requests import Context, Requests

M = TypeVar("M", bound=Message)


async def add_standard(server: aio.Server, services: Sequence[str], requests: Requests) -> None:
    """Say that these services are there and well."""
    load_all()
    health = health_aio.HealthServicer()
    for described in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(described.DESCRIPTOR.serialized_pb)
    known = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    names = (*services, known, reflection.SERVICE_NAME)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(known, _health(health, requests)),
            grpc.method_handlers_generic_handler(
                reflection.SERVICE_NAME, _reflection(names, requests)
            ),
        )
    )
    for name in services:
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)


def _health(
    servicer: health_aio.HealthServicer, requests: Requests
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    async def check(_requests: Any, context: Context) -> Any:
        raw = await requests.read(context)
        return await servicer.Check(
            await _parsed(health_pb2.HealthCheckRequest, raw, context), context
        )

    async def watch(_requests: Any, context: Context) -> None:
        raw = await requests.read(context)
        await servicer.Watch(await _parsed(health_pb2.HealthCheckRequest, raw, context), context)

    write = health_pb2.HealthCheckResponse.SerializeToString
    return {
        "Check": grpc.stream_unary_rpc_method_handler(check, None, write),
        "Watch": grpc.stream_stream_rpc_method_handler(watch, None, write),
    }


def _reflection(
    names: Sequence[str], requests: Requests
) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    servicer: Any = reflection.aio.ReflectionServicer(names, pool=POOL)

    async def asked(context: Context) -> AsyncGenerator[Any]:
        while (raw := await requests.next(context)) is not None:
            yield await _parsed(reflection_pb2.ServerReflectionRequest, raw, context)

    async def answer(_requests: Any, context: Context) -> AsyncGenerator[Any]:
        answers: Any = servicer.ServerReflectionInfo(
            asked(context), context
        )  # a generator, not what it declares
        async for one in answers:
            yield one

    write = reflection_pb2.ServerReflectionResponse.SerializeToString
    return {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(answer, None, write)}


async def _parsed(kind: type[M], raw: bytes, context: Context) -> M:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        sentence = f"the request is not a {kind.DESCRIPTOR.full_name}: {error}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        raise AssertionError from error  # abort raises
