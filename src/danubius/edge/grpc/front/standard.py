"""The services that every gRPC server should have: health for orchestrators, reflection for tools like grpcurl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from danubius.edge.grpc.messages import POOL, load_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpc import aio


async def add_standard(server: aio.Server, services: Sequence[str]) -> None:
    """Say that these services are there and well."""
    load_all()
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    for described in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(described.DESCRIPTOR.serialized_pb)
    known = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    reflection.enable_server_reflection(
        (*services, known, reflection.SERVICE_NAME), server, pool=POOL
    )
    for name in services:
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
