"""The suite of LedgerStore against a storage server over each kind of backend."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from danubius.conformance.checks import report
from danubius.conformance.ledger_checks import run_ledger_checks
from danubius.storage_service.backends import open_backend

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.ledger.store import LedgerStore
    from unit.storage_service.conftest import Serve


@pytest.mark.parametrize(
    ("backend", "restarts"), [("memory", False), ("local", False), ("local", True), ("fs", True)]
)
def test_remote_over(backend: str, restarts: bool, serve: Serve, tmp_path: Path) -> None:
    """Where `restarts`, the server is another one whenever the suite opens its store again."""
    options = {"memory": {}, "local": {"path": str(tmp_path)}, "fs": {"root": str(tmp_path)}}
    opened = open_backend(backend, options[backend])
    served = serve(opened.open_store)
    epochs = itertools.count(1)

    def connect() -> LedgerStore:
        if restarts:
            served.restart()
        return served.connect("suite", epoch=next(epochs))

    lines: list[str] = []
    assert report(run_ledger_checks(connect(), connect), lines.append), "\n".join(lines)
    opened.close()
