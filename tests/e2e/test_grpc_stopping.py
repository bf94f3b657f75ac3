"""A server that is about to stop: whoever comes is told to try again, whoever is there is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from danubius.edge.grpc.messages import danube
from danubius.edge.grpc.server import GrpcServer, Servicer
from e2e.grpc_loop import on_grpc_loop


async def test_new_calls_are_refused_as_unavailable_and_old_ones_answered() -> None:
    await on_grpc_loop(refuse_while_one_is_under_way())


async def refuse_while_one_is_under_way() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def check(request: Any, context: Any) -> Any:
        del request, context
        began.set()
        await go_on.wait()
        return danube.HealthCheckResponse(status="OK")

    service = danube.service("HealthCheck")
    server = GrpcServer()
    port = server.bind("127.0.0.1", 0, "--grpc-port")
    await server.serve([Servicer(service, {"HealthCheck": check})])
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            (method,) = service.methods
            call = channel.unary_unary(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            async with asyncio.TaskGroup() as tasks:

                async def ask() -> Any:
                    return await call(danube.HealthCheckRequest(), timeout=60)

                under_way = tasks.create_task(ask())
                await began.wait()
                server.refuse()
                with pytest.raises(aio.AioRpcError, match="stopping") as refused:
                    await ask()
                go_on.set()
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert under_way.result().status == 0
    finally:
        await server.close()
