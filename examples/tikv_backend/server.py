"""A storage server for Danubius over TiKV. NOT RUN AGAINST A REAL TIKV; see README.md.

pip install 'danubius[broker,grpc]' tikv-python
python server.py --pd 127.0.0.1:2379 --listen 127.0.0.1:6660
danubius standalone --ledger-store remote --ledger-store-url grpc://127.0.0.1:6660
"""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

import tikv
from tikv_ledgers import TikvLedgerStore

from danubius.errors import StorageFailed
from danubius.storage_service.server import StorageServer
from danubius.storage_service.stores import Stores


class Translated:
    """TiKV's client, with its errors as the port has them."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                result = method(*arguments, **options)
                return list(result) if name == "scan_keys" else result
            except tikv.TiKVError as error:
                raise StorageFailed(f"TiKV: {error}") from error

        return call


def main() -> None:
    parser = argparse.ArgumentParser(description="Keep the ledgers of Danubius in TiKV.")
    parser.add_argument(
        "--pd", action="append", required=True, help="HOST:PORT of a placement driver"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:6660", help="where brokers reach this server"
    )
    given = parser.parse_args()
    host, _, port = given.listen.rpartition(":")
    with tikv.RawClient(given.pd, timeout=10.0) as client:
        kv = Translated(client)
        stores = Stores(lambda name: TikvLedgerStore(kv, name))
        server = StorageServer(stores)
        bound = server.bind(host, int(port))
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        stores.start()
        server.start()
        print(f"ready: grpc://{host}:{bound}", flush=True)
        ended.wait()
        server.stop(5.0)
        stores.close()


if __name__ == "__main__":
    main()
