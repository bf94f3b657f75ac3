"""All of the gRPC edge: two ports, what is served on them, and how it begins and ends.

The ports are in a process of their own, the front; what is served on them is here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.edge.grpc.addresses import Addresses
from danubius.edge.grpc.data.consumer_book import ConsumerBook
from danubius.edge.grpc.data.consuming import Consumers
from danubius.edge.grpc.data.producing import Producers
from danubius.edge.grpc.data.schemas import SchemaEdge
from danubius.edge.grpc.data.services import (
    ConsumerEdge,
    DiscoveryEdge,
    ProducerEdge,
)
from danubius.edge.grpc.frames import Open
from danubius.edge.grpc.switchboard import Switchboard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from danubius.edge.grpc.front_process import Front
    from danubius.edge.grpc.servicer import Servicer
    from danubius.runtime.files import Files
    from danubius.session.door import Door

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

    def __init__(
        self, door: Door, front: Front, options: GrpcOptions, folder: Path, files: Files
    ) -> None:
        """It owns the front from here on."""
        self._door = door
        self._front = front
        self._options = options
        self._book = ConsumerBook(folder, files, door.loop)
        self._board: Switchboard | None = None
        self._producers: Producers | None = None
        self._consumers: Consumers | None = None
        self.port = 0
        self.admin_port = 0

    async def open(self, admin: Sequence[Servicer] = ()) -> None:
        """Listen on both ports; `admin` is what the second one serves."""
        options = self._options
        await asyncio.to_thread(self._book.open)
        # Who listens on port 0 learns it by binding, and must tell it in its answers: bind first, then fill in.
        asked = Open(options.host, options.port, options.admin_port)
        self.port, self.admin_port = msgspec.structs.astuple(await self._front.bind(asked))
        addresses = Addresses(options.host, self.port, options.advertised_host, options.connect_url)
        self._door.about.grpc_url = addresses.url
        producers = self._producers = Producers(self._door)
        consumers = self._consumers = Consumers(self._door, self._book, addresses.url)
        schemas = SchemaEdge(self._door).servicer()
        self._board = Switchboard(
            [
                ProducerEdge(self._door, producers).servicer(),
                ConsumerEdge(consumers).servicer(),
                *DiscoveryEdge(self._door, addresses, producers, consumers).servicers(),
                schemas,
            ],
            [*admin, schemas],
        )
        self._front.serve(self._board)

    async def close(self) -> None:
        """Send everyone away."""
        if self._board is not None:
            self._board.refuse()
        if self._consumers is not None:
            self._consumers.close()
            await asyncio.sleep(REFUSE_S)
        await self._front.close(STOP_S)
        if self._board is not None:
            await self._board.close(STOP_S)
        if self._producers is not None:
            self._producers.close()
        self._book.close()

    @property
    def is_up(self) -> bool:
        """Whether the front is there."""
        return self._front.is_up

    @property
    def restarts(self) -> int:
        return self._front.restarts

    @property
    def calls(self) -> int:
        """Under way."""
        return len(self._board) if self._board is not None else 0

    def facts(self) -> dict[str, object]:
        """For the health page."""
        return {
            "grpc_port": self.port,
            "admin_port": self.admin_port,
            "grpc_is_up": self.is_up,
            "grpc_front_pid": self._front.pid,
            "grpc_front_restarts": self.restarts,
            "grpc_calls": self.calls,
            "grpc_producers": len(self._producers) if self._producers is not None else 0,
            "grpc_streams": self._consumers.streams if self._consumers is not None else 0,
        }
