"""The suites from the command line.

    python -m danubius.conformance objects|ledgers URL [--option key=value …]

Runs a suite against a real store and says what it finds. A plug-in of one's own is named by where it is made:
`python:package.module:function`, a function without arguments that opens the store.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danubius.conformance.checks import report
from danubius.conformance.ledger_checks import run_ledger_checks
from danubius.conformance.object_checks import LARGE_BYTES, run_object_checks
from danubius.errors import DanubiusError, TierMisconfigured
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.memory import MemoryLedgerStore
from danubius.runtime.files import LocalFiles
from danubius.tier.connect import open_objects
from danubius.tier.object_ledgers import ObjectLedgerStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danubius.ledger.store import LedgerStore
    from danubius.tier.objects import ObjectStore

_OWN = "python:"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    try:
        options = _options(given.option)
        if given.suite == "objects":
            return _check_objects(given.url, options, given.large_bytes)
        return _check_ledgers(given.url, options)
    except DanubiusError as error:
        _write(f"{type(error).__name__}: {error.message}")
        return 2


def _check_objects(url: str, options: dict[str, str], large_bytes: int) -> int:
    objects: ObjectStore = _make(url)() if url.startswith(_OWN) else open_objects(url, options)
    prefix = f"conformance-{secrets.token_hex(8)}/"
    _write(f"ObjectStore at {objects.url}, below {prefix}")
    try:
        return (
            0 if report(run_object_checks(objects, prefix, large_bytes=large_bytes), _write) else 1
        )
    finally:
        objects.close()


def _check_ledgers(url: str, options: dict[str, str]) -> int:
    make, can_reopen = _ledger_store(url, options)
    store = make()
    _write(f"LedgerStore {type(store).__name__} at {url.partition('://')[0]}")
    return 0 if report(run_ledger_checks(store, make if can_reopen else None), _write) else 1


def _ledger_store(url: str, options: dict[str, str]) -> tuple[Callable[[], LedgerStore], bool]:
    """How to open a store, and whether what is in it outlives it."""
    if url.startswith(_OWN):
        return _make(url), True
    if url == "memory:":
        return MemoryLedgerStore, False
    if url.startswith("local:"):
        directory = Path(url.removeprefix("local:"))
        return lambda: LocalLedgerStore(LocalFiles(), directory), True
    if url.startswith("grpc://"):
        return _remote(url), True
    objects = open_objects(url, options)
    prefix = f"conformance-{secrets.token_hex(8)}/"
    return lambda: ObjectLedgerStore(objects, prefix), True


def _remote(url: str) -> Callable[[], LedgerStore]:
    """A storage server, and in it a store that nobody else has; each opening is a later start of its broker."""
    # Who keeps ledgers elsewhere needs no gRPC.
    from danubius.storage_service.remote_ledgers import RemoteLedgerStore

    name = f"conformance-{secrets.token_hex(8)}"
    epochs = itertools.count(1)
    return lambda: RemoteLedgerStore(url, name, next(epochs))


def _make(url: str) -> Any:
    module, _, name = url.removeprefix(_OWN).partition(":")
    if not name:
        raise TierMisconfigured("a store of one's own is named as python:package.module:function")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TierMisconfigured(f"{url} cannot be found: {error}") from error


def _options(pairs: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise TierMisconfigured(f"an option is key=value, and '{name}' has no '='")
        options[name] = value
    return options


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m danubius.conformance",
        description="Check that a store does what Danubius expects of it.",
        epilog="objects: s3://bucket/prefix, gcs://…, azblob://…, redis://…, fs:///path, memory://name. "
        "ledgers: local:DIRECTORY, memory:, grpc://host:port, or any of these. Either: python:package.module:function.",
    )
    parser.add_argument("suite", choices=["objects", "ledgers"])
    parser.add_argument("url", help="where the store is")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--large-bytes", type=int, default=LARGE_BYTES, help="size of a large object (objects only)"
    )
    return parser.parse_args(arguments)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
