"""Which store a data directory has, and that it stays with it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from danubius.app.ledger_stores import FILE_NAME, LedgerStoreSettings, open_ledger_store
from danubius.broker.data_directory import DataDirectory
from danubius.errors import (
    BrokerReplaced,
    DanubiusError,
    DataDirectoryDamaged,
    InvalidArgument,
    StorageFailed,
)
from danubius.ledger.entry import LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.ledger_file import LedgerHeader
from danubius.runtime.files import LocalFiles
from danubius.storage_service.server import StorageServer
from danubius.storage_service.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REF = LedgerRef(7, 1)
HEADER = LedgerHeader(7, 1, 0, 1, 0)
FILES = LocalFiles()


class Server:
    """A storage server in memory; `forget` makes it another one at the same address."""

    def __init__(self) -> None:
        self._kept: dict[str, MemoryLedgerStore] = {}
        stores = Stores(lambda name: self._kept.setdefault(name, MemoryLedgerStore()))
        self._stores = stores
        self._server = StorageServer(stores)
        self.settings = LedgerStoreSettings(
            "remote", f"grpc://127.0.0.1:{self._server.bind('127.0.0.1', 0)}"
        )
        self._server.start()

    def forget(self) -> None:
        self._kept.clear()
        self._stores._entries.clear()

    def close(self) -> None:
        self._server.stop(0.0)
        self._stores.close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture(params=["remote", "object"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerStoreSettings:
    """A store that is not local."""
    if request.param == "remote":
        found: Server = request.getfixturevalue("server")
        return found.settings
    return LedgerStoreSettings("object", f"fs://{tmp_path}/objects")


def start(path: Path, settings: LedgerStoreSettings) -> list[LedgerRef]:
    """A broker's life: what it finds in its store, and one ledger more."""
    directory = DataDirectory.open(path, FILES, "broker-1")
    directory.take_up()
    try:
        store = open_ledger_store(settings, directory, FILES, 8)
        found = store.list()
        ref = LedgerRef(7, len(found))
        store.create(ref, HEADER, [b"content"])
        store.sync([ref])
        assert store.read(ref, 64, 100) == b"content"
        store.close()
        return found
    finally:
        directory.release()


def test_ledgers_are_found_again(elsewhere: LedgerStoreSettings, tmp_path: Path) -> None:
    assert start(tmp_path / "d", elsewhere) == []
    assert start(tmp_path / "d", elsewhere) == [LedgerRef(7, 0)]
    assert start(tmp_path / "d", elsewhere) == [LedgerRef(7, 0), LedgerRef(7, 1)]
    assert not (tmp_path / "d" / "ledgers").exists()


def test_a_directory_with_its_own_ledgers_keeps_them(
    elsewhere: LedgerStoreSettings, tmp_path: Path
) -> None:
    local = LedgerStoreSettings()
    start(tmp_path / "d", local)
    with pytest.raises(InvalidArgument, match=r"keeps its ledgers itself.*--data-dir"):
        start(tmp_path / "d", elsewhere)
    assert start(tmp_path / "d", local) == [LedgerRef(7, 0)]
    assert not (tmp_path / "d" / FILE_NAME).exists()


def test_a_directory_whose_ledgers_are_elsewhere_says_where(
    elsewhere: LedgerStoreSettings, tmp_path: Path
) -> None:
    start(tmp_path / "d", elsewhere)
    with pytest.raises(InvalidArgument, match=rf"--ledger-store-url {elsewhere.url}"):
        start(tmp_path / "d", LedgerStoreSettings())
    moved = LedgerStoreSettings(elsewhere.kind, elsewhere.url + "0")
    with pytest.raises(InvalidArgument, match=r"another address now.*ledger-store\.json"):
        start(tmp_path / "d", moved)


def test_a_store_that_lost_everything_is_refused(server: Server, tmp_path: Path) -> None:
    start(tmp_path / "d", server.settings)
    server.forget()
    with pytest.raises(DataDirectoryDamaged, match=r"nothing is known of this broker \(broker-1\)"):
        start(tmp_path / "d", server.settings)


def test_an_object_store_that_lost_everything_is_refused(tmp_path: Path) -> None:
    settings = LedgerStoreSettings("object", f"fs://{tmp_path}/objects")
    start(tmp_path / "d", settings)
    shutil.rmtree(tmp_path / "objects")
    with pytest.raises(DataDirectoryDamaged, match="nothing is known of this broker"):
        start(tmp_path / "d", settings)


def test_an_old_copy_of_the_directory_is_refused(
    elsewhere: LedgerStoreSettings, tmp_path: Path
) -> None:
    start(tmp_path / "d", elsewhere)
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    for _ in range(3):
        start(tmp_path / "d", elsewhere)
    with pytest.raises(BrokerReplaced, match=r"later start of the broker.*epoch 4"):
        start(tmp_path / "copy", elsewhere)


def test_a_start_that_found_no_server_may_be_repeated(server: Server, tmp_path: Path) -> None:
    away = LedgerStoreSettings("remote", "grpc://127.0.0.1:1", deadline_ms=100)
    with pytest.raises(StorageFailed, match=r"127\.0\.0\.1:1"):
        start(tmp_path / "d", away)
    assert start(tmp_path / "d", server.settings) == []
    with pytest.raises(StorageFailed, match=r"127\.0\.0\.1:1"):
        start(tmp_path / "e", away)
    assert start(tmp_path / "e", LedgerStoreSettings()) == []
    assert start(tmp_path / "e", LedgerStoreSettings()) == [LedgerRef(7, 0)]
    with pytest.raises(InvalidArgument, match="keeps its ledgers itself"):
        start(tmp_path / "e", server.settings)


def test_a_damaged_record_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / FILE_NAME).write_text("{")
    with pytest.raises(DataDirectoryDamaged, match=FILE_NAME):
        start(tmp_path / "d", LedgerStoreSettings())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LedgerStoreSettings("remote"), "url is needed, such as grpc://"),
        (LedgerStoreSettings("object"), "url is needed, such as s3://"),
        (LedgerStoreSettings("local", "grpc://a:1"), "kept in the data directory"),
        (LedgerStoreSettings("local", options={"a": "b"}), "kept in the data directory"),
        (LedgerStoreSettings("remote", "grpc://a:1", {"a": "b"}), "its server is given them"),
        (LedgerStoreSettings("remote", "http://a"), "grpc://host:port"),
        (LedgerStoreSettings("object", "nowhere"), "an object store has an address"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    settings: LedgerStoreSettings, words: str, tmp_path: Path
) -> None:
    with pytest.raises(DanubiusError, match=words):
        start(tmp_path / "d", settings)
