"""The example over TiKV, with a dictionary in TiKV's place: that is all that is known of it."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from danubius.conformance.checks import report
from danubius.conformance.ledger_checks import run_ledger_checks

if TYPE_CHECKING:
    from danubius.ledger.store import LedgerStore
    from unit.storage_service.conftest import Serve

_FILE = Path(__file__).parents[3] / "examples" / "tikv_backend" / "tikv_ledgers.py"


class Dictionary:
    """As much of `tikv.RawClient` as the example uses."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        self._values.pop(key, None)

    def delete_range(self, start: bytes, end: bytes) -> None:
        for key in self.scan_keys(start, end):
            del self._values[key]

    def scan_keys(
        self, start: bytes, end: bytes, *, limit: int | None = None, reverse: bool = False
    ) -> list[bytes]:
        keys = [key for key in self._values.copy() if start <= key < end]
        return sorted(keys, reverse=reverse)[:limit]


@pytest.fixture
def example() -> Any:
    spec = importlib.util.spec_from_file_location("tikv_ledgers", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(first: LedgerStore, reopen: Any) -> None:
    lines: list[str] = []
    assert report(run_ledger_checks(first, reopen), lines.append), "\n".join(lines)


def test_the_plug_in_alone(example: Any) -> None:
    kv = Dictionary()
    check(example.TikvLedgerStore(kv, "s"), lambda: example.TikvLedgerStore(kv, "s"))


def test_the_plug_in_with_small_pages(example: Any) -> None:
    example.PAGE_BYTES = 64 * 1024
    kv = Dictionary()
    check(example.TikvLedgerStore(kv, "s"), lambda: example.TikvLedgerStore(kv, "s"))


def test_the_plug_in_behind_the_service(example: Any, serve: Serve) -> None:
    kv = Dictionary()
    served = serve(lambda name: example.TikvLedgerStore(kv, name))
    epochs = itertools.count(1)

    def connect() -> LedgerStore:
        served.restart()
        return served.connect("suite", epoch=next(epochs))

    check(connect(), connect)
