"""A storage server in this process, on a port of its own, over a backend that the test chooses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from danubius.storage_service.remote_ledgers import RemoteLedgerStore
from danubius.storage_service.server import StorageServer
from danubius.storage_service.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danubius.ledger.store import LedgerStore

_numbers = itertools.count(1)


class Served:
    """A server and those who speak to it; `restart` is another process, as far as anybody can see."""

    def __init__(self, open_store: Callable[[str], LedgerStore]) -> None:
        self._open_store = open_store
        self._clients: list[RemoteLedgerStore] = []
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.stores = Stores(self._open_store)
        self._server = StorageServer(self.stores)
        self.port = self._server.bind("127.0.0.1", self.port)
        self.stores.start()
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0.0)
        self.stores.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def connect(self, store: str = "", *, epoch: int = 1, **options: float) -> RemoteLedgerStore:
        """A broker of its own, unless it names a store."""
        name = store or f"broker-{next(_numbers)}"
        client = RemoteLedgerStore(self.url, name, epoch, **options)  # pyright: ignore[reportArgumentType]
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.stop()


Serve = Callable[[Callable[[str], "LedgerStore"]], Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that end with the test."""
    started: list[Served] = []

    def start(open_store: Callable[[str], LedgerStore]) -> Served:
        started.append(Served(open_store))
        return started[-1]

    yield start
    for served in started:
        served.close()
