"""A start that is refused: nothing that was there is changed, and once what was missing is back, nothing is missing."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

import danubius
from danubius.app.ledger_stores import LedgerStoreSettings
from danubius.app.options import StandaloneOptions
from danubius.app.standalone import Standalone
from danubius.errors import BrokerReplaced, DataDirectoryDamaged
from danubius.ledger.local import LocalLedgerStore
from danubius.runtime.files import LocalFiles
from danubius.storage_service.server import StorageServer
from danubius.storage_service.stores import Stores
from danubius.tier.config import TierConfig
from danubius.tier.diskless_config import DisklessConfig
from danubius.wal.config import JournalConfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from pathlib import Path

TOPICS = ("/default/small", "/default/large")
JOURNAL = JournalConfig(fill_bytes=0)


@contextlib.asynccontextmanager
async def running(path: Path, *, is_killed: bool = False) -> AsyncGenerator[danubius.Client]:
    broker = Standalone(StandaloneOptions(path, port=0, http_port=0), journal_config=JOURNAL)
    await broker.start()
    try:
        async with danubius.connect(broker.url) as client:
            yield client
    finally:
        await (broker.abandon() if is_killed else broker.stop())


async def publish(client: danubius.Client, count: int) -> None:
    for topic in TOPICS:
        size = 10 if topic.endswith("small") else 100_000
        async with client.producer(topic) as producer:
            for number in range(count):
                await producer.send(b"%d" % number * size)


async def payloads(client: danubius.Client) -> list[bytes]:
    found: list[bytes] = []
    for topic in TOPICS:
        async with client.reader(topic, start="earliest", stop_at_end=True) as reader:
            found += [message.payload async for message in reader]
    return found


async def lived(path: Path, *, is_killed: bool) -> list[bytes]:
    """Two lives, of which the second ends as it is said; what the topics hold."""
    async with running(path) as client:
        await publish(client, 5)
    async with running(path, is_killed=is_killed) as client:
        await publish(client, 5)
        return await payloads(client)


def contents(path: Path) -> dict[str, bytes]:
    """All files but the lock, which says whose process looked last."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock"
    }


def newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern))


def move_away(*names: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for name in names:
            shutil.rmtree(path / name)

    return damage


def empty(*names: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for name in names:
            shutil.rmtree(path / name)
            (path / name).mkdir()

    return damage


def filled_journals(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("journal/*.journal") if file.stat().st_size)


def remove_newest_journal(path: Path) -> None:
    filled_journals(path)[-1].unlink()


def overwrite_newest_journal(path: Path) -> None:
    file = filled_journals(path)[-1]
    file.write_bytes(b"garbage!" * (file.stat().st_size // 8))


def overwrite_all_snapshots(path: Path) -> None:
    for file in path.glob("snapshots/*"):
        file.write_bytes(b"garbage!" * 100)


DAMAGES = {
    "no snapshots": move_away("snapshots"),
    "empty snapshots": empty("snapshots"),
    "no journal": move_away("journal"),
    "empty journal": empty("journal"),
    "neither": move_away("snapshots", "journal"),
    "empty both": empty("snapshots", "journal"),
    "no ledgers": move_away("ledgers"),
    "empty ledgers": empty("ledgers"),
    "all but danubius.json": move_away("snapshots", "journal", "ledgers"),
    "snapshots overwritten": overwrite_all_snapshots,
    "newest journal file missing": remove_newest_journal,
    "newest journal file overwritten": overwrite_newest_journal,
}


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("name", DAMAGES)
async def test_what_is_missing_is_told_and_nothing_is_changed(
    name: str, is_killed: bool, tmp_path: Path
) -> None:
    path, copy = tmp_path / "data", tmp_path / "copy"
    expected = await lived(path, is_killed=is_killed)
    shutil.copytree(path, copy)
    DAMAGES[name](path)
    before = contents(path)
    for _ in range(3):
        with pytest.raises(DataDirectoryDamaged):
            async with running(path):
                pass
        assert contents(path) == before
    shutil.copytree(copy, path, dirs_exist_ok=True)
    async with running(path) as client:
        assert await payloads(client) == expected


async def commit(client: danubius.Client, payload: bytes) -> None:
    async with client.producer(TOPICS[0]) as producer, client.transaction() as transaction:
        await transaction.send(producer, payload)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_commits_are_stored_after_an_older_danubius_json_was_put_back(
    is_killed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    async with running(path):
        pass
    older = (path / "danubius.json").read_bytes()
    for _ in range(2):
        async with running(path, is_killed=is_killed) as client:
            await commit(client, b"before")
    (path / "danubius.json").write_bytes(older)
    for number in range(3):
        async with running(path, is_killed=is_killed) as client:
            await commit(client, b"after")
            async with client.reader(TOPICS[0], start="earliest", stop_at_end=True) as reader:
                found = [message.payload async for message in reader]
            assert found == [b"before"] * 2 + [b"after"] * (number + 1)


async def test_what_no_state_explains_is_set_aside_and_named(tmp_path: Path) -> None:
    path = tmp_path / "data"
    expected = await lived(path, is_killed=False)
    ledger = newest(path, "ledgers/*/*.ledger")
    strange = path / "ledgers" / "ff" / f"{0xFFFFFF:016x}-00000000.ledger"
    strange.parent.mkdir(exist_ok=True)
    shutil.copy(ledger, strange)
    async with running(path) as client:
        assert await payloads(client) == expected
    assert not strange.exists()
    [kept] = (path / "quarantine").iterdir()
    assert kept.read_bytes() == ledger.read_bytes()


async def test_nothing_is_left_over_after_kills(tmp_path: Path) -> None:
    """What was written behind a snapshot is in the journal: it is explained, and goes."""
    path = tmp_path / "data"
    expected: list[bytes] = []
    for _ in range(3):
        async with running(path, is_killed=True) as client:
            await publish(client, 5)
            expected = await payloads(client)
    async with running(path) as client:
        assert await payloads(client) == expected
    assert not (path / "quarantine").exists()


@pytest.mark.parametrize("names", [("snapshots",), ("snapshots", "journal")])
async def test_ledgers_in_an_object_store_survive_a_start_that_is_refused(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    path, store, copy = tmp_path / "data", tmp_path / "objects", tmp_path / "copy"
    settings = LedgerStoreSettings("object", f"fs://{store}")

    def make() -> Standalone:
        options = StandaloneOptions(path, port=0, http_port=0, ledger_store=settings)
        return Standalone(options, journal_config=JOURNAL)

    broker = make()
    await broker.start()
    async with danubius.connect(broker.url) as client:
        await publish(client, 3)
        expected = await payloads(client)
    await broker.stop()
    shutil.copytree(path, copy)
    move_away(*names)(path)
    before = contents(path), contents(store)
    for _ in range(2):
        with pytest.raises(DataDirectoryDamaged):
            await make().start()
        assert (contents(path), contents(store)) == before
    shutil.copytree(copy, path, dirs_exist_ok=True)
    broker = make()
    await broker.start()
    async with danubius.connect(broker.url) as client:
        assert await payloads(client) == expected
    await broker.stop()


@contextlib.contextmanager
def serving(root: Path, port: int = 0) -> Generator[int]:
    """A storage server over files, from its start to its end; its port."""
    stores = Stores(lambda name: LocalLedgerStore(LocalFiles(), root / name))
    server = StorageServer(stores)
    port = server.bind("127.0.0.1", port)
    stores.start()
    server.start()
    try:
        yield port
    finally:
        server.stop(0.0)
        stores.close()


@pytest.mark.parametrize(
    "names", [("data/snapshots",), ("data/snapshots", "data/journal"), ("server",)]
)
async def test_ledgers_on_a_storage_server_survive_a_start_that_is_refused(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    path, copy = tmp_path / "here", tmp_path / "copy"

    def make(port: int) -> Standalone:
        settings = LedgerStoreSettings("remote", f"grpc://127.0.0.1:{port}")
        options = StandaloneOptions(path / "data", port=0, http_port=0, ledger_store=settings)
        return Standalone(options, journal_config=JOURNAL)

    with serving(path / "server") as port:
        broker = make(port)
        await broker.start()
        async with danubius.connect(broker.url) as client:
            await publish(client, 3)
            expected = await payloads(client)
        await broker.stop()
    shutil.copytree(path, copy)
    move_away(*names)(path)
    before = contents(path)
    for _ in range(2):
        with serving(path / "server", port), pytest.raises(DataDirectoryDamaged):
            await make(port).start()
        assert contents(path) == before
    shutil.copytree(copy, path, dirs_exist_ok=True)
    with serving(path / "server", port):
        broker = make(port)
        await broker.start()
        async with danubius.connect(broker.url) as client:
            assert await payloads(client) == expected
        await broker.stop()


async def test_an_old_copy_of_a_data_directory_never_gets_a_newer_object_store(
    tmp_path: Path,
) -> None:
    path, store, copy = tmp_path / "data", tmp_path / "objects", tmp_path / "copy"
    settings = LedgerStoreSettings("object", f"fs://{store}")

    def make(data: Path) -> Standalone:
        options = StandaloneOptions(data, port=0, http_port=0, ledger_store=settings)
        return Standalone(options, journal_config=JOURNAL)

    for number in range(3):
        broker = make(path)
        await broker.start()
        async with danubius.connect(broker.url) as client:
            await publish(client, 3)
        await broker.stop()
        if number == 0:
            shutil.copytree(path, copy)
    before = contents(copy), contents(store)
    for _ in range(4):
        with pytest.raises(BrokerReplaced):
            await make(copy).start()
        assert (contents(copy), contents(store)) == before


async def test_a_broker_without_a_disk_misses_its_journal(tmp_path: Path) -> None:
    store, copy = tmp_path / "objects", tmp_path / "copy"

    def make() -> Standalone:
        return Standalone(
            StandaloneOptions(
                tmp_path / "data",
                port=0,
                http_port=0,
                tier=TierConfig(url=f"fs://{store}"),
                diskless=DisklessConfig(enabled=True),
            )
        )

    broker = make()
    await broker.start()
    async with danubius.connect(broker.url) as client:
        await publish(client, 3)
        expected = await payloads(client)
    await broker.stop()
    shutil.copytree(store, copy)
    shutil.rmtree(store / "diskless" / "journal")
    before = contents(store)
    for _ in range(2):
        with pytest.raises(DataDirectoryDamaged, match="no journal"):
            await make().start()
        after = contents(store)
        assert before.items() <= after.items()
    shutil.copytree(copy, store, dirs_exist_ok=True)
    broker = make()
    await broker.start()
    async with danubius.connect(broker.url) as client:
        assert await payloads(client) == expected
    await broker.stop()
