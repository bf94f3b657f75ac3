"""All of the gRPC edge: two ports, what is served on them, and how it begins and ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.edge.grpc.addresses import Addresses
from danubius.edge.grpc.consumer_book import ConsumerBook
from danubius.edge.grpc.consuming import Consumers
from danubius.edge.grpc.data_servicers import (
    ConsumerEdge,
    DiscoveryEdge,
    ProducerEdge,
    schema_servicer,
)
from danubius.edge.grpc.producing import Producers
from danubius.edge.grpc.server import GrpcServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from danubius.broker.node import Node
    from danubius.edge.grpc.server import Servicer
    from danubius.runtime.files import Files

REFUSE_S: Final = 0.08
"""For how long new calls are refused before the ports close: less than Danube's clients wait before they try again."""
STOP_S: Final = 1.0
"""For calls that are under way when the broker stops."""


class GrpcOptions(NamedTuple):
    """Where the edge listens and what it tells clients."""

    host: str
    port: int
    admin_port: int
    advertised_host: str = ""
    """How clients reach the broker; empty: as it listens."""
    connect_url: str = ""
    """Of a proxy that clients come through; empty: none."""


class GrpcEdge:
    """Danube's clients and operators, served."""

    def __init__(self, node: Node, options: GrpcOptions, folder: Path, files: Files) -> None:
        self._node = node
        self._options = options
        self._book = ConsumerBook(folder, files, node.broker.loop)
        self._servers: list[GrpcServer] = []
        self._producers: Producers | None = None
        self._consumers: Consumers | None = None
        self.port = 0
        self.admin_port = 0

    async def open(self, admin: Sequence[Servicer] = ()) -> None:
        """Listen on both ports; `admin` is what the second one serves."""
        options = self._options
        await asyncio.to_thread(self._book.open)
        # Who listens on port 0 learns it by binding, and must tell it in its answers: bind first, then fill in.
        data = GrpcServer()
        self._servers.append(data)
        self.port = data.bind(options.host, options.port, "--grpc-port")
        addresses = Addresses(options.host, self.port, options.advertised_host, options.connect_url)
        producers = self._producers = Producers(self._node)
        consumers = self._consumers = Consumers(self._node, self._book, addresses.url)
        await data.serve(
            [
                ProducerEdge(self._node, producers).servicer(),
                ConsumerEdge(consumers).servicer(),
                *DiscoveryEdge(self._node, addresses, producers, consumers).servicers(),
                schema_servicer(),
            ]
        )
        operators = GrpcServer()
        self._servers.append(operators)
        self.admin_port = operators.bind(options.host, options.admin_port, "--admin-port")
        await operators.serve([*admin, schema_servicer()])

    async def close(self) -> None:
        """Send everyone away."""
        for server in self._servers:
            server.refuse()
        if self._consumers is not None:
            self._consumers.close()
            await asyncio.sleep(REFUSE_S)
        for server in self._servers:
            await server.close(STOP_S)
        if self._producers is not None:
            self._producers.close()
        self._book.close()

    def facts(self) -> dict[str, object]:
        """For the health page."""
        return {
            "grpc_port": self.port,
            "admin_port": self.admin_port,
            "grpc_producers": len(self._producers) if self._producers is not None else 0,
            "grpc_streams": self._consumers.streams if self._consumers is not None else 0,
        }
