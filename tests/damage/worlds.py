"""Everything that a broker keeps, as one dict from names to bytes, and brokers that begin on such a dict.

    data/…      the data directory
    server/…    the files of a storage server
    objects/…   the objects of an object store

A name that ends with a slash is an empty directory. The disk is simulated and the objects are in memory, so an image is
laid out in milliseconds; everything else is a broker as it is run, but for its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from danubius.app.ledger_stores import LedgerStoreSettings
from danubius.app.options import StandaloneOptions
from danubius.app.ports import Ports
from danubius.app.standalone import Standalone
from danubius.broker.config import BrokerConfig
from danubius.broker.events import BARRIER
from danubius.ledger.config import LedgerConfig
from danubius.ledger.local import LocalLedgerStore
from danubius.model.limits import KIB, MIB
from danubius.model.policy import Policies
from danubius.runtime.files import LocalFiles
from danubius.sim.disk import SimFiles
from danubius.storage_service.server import StorageServer
from danubius.storage_service.stores import Stores
from danubius.tier.config import TierConfig
from danubius.tier.diskless_config import DisklessConfig
from danubius.tier.memory_objects import MemoryObjects
from danubius.wal.config import JournalConfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from danubius.errors import DanubiusError
    from danubius.runtime.files import Files

Image = dict[str, bytes]

KINDS: Final = ("local", "tier", "object", "remote", "diskless")
DATA: Final = Path("/data")
_SERVER: Final = Path("/server")
JOURNAL: Final = JournalConfig(file_bytes=64 * KIB, files_max=64, fill_bytes=0)
LEDGERS: Final = LedgerConfig(
    cache_bytes=8 * MIB,
    flush_bytes=4 * MIB,
    dirty_bytes_max=8 * MIB,
    # Only a checkpoint writes, so one history gives one directory.
    flush_interval_ms=3_600_000,
    flush_age_ms=3_600_000,
    block_bytes=4 * KIB,
    ledger_bytes_max=100 * KIB,
)
_port = 0
"""Of storage servers, one after the other: a data directory remembers the address of its own."""


class Broker(Standalone):
    """A broker that nobody can reach, unless its sockets are asked for."""

    def __init__(self, options: StandaloneOptions, files: Files, *, listens: bool) -> None:
        # Where there is cold storage, ledgers go there as soon as they may.
        policies = Policies(offload_age_ms=0) if options.tier.url else Policies()
        super().__init__(
            options,
            ports=Ports(files=files),
            broker_config=BrokerConfig(policies=policies),
            ledger_config=LEDGERS,
            journal_config=JOURNAL,
        )
        self._listens = listens

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._listens:
            await super()._listen(loop)

    @property
    def epoch(self) -> int:
        return self._home.epoch

    async def checkpoint(self) -> None:
        await self._checkpoint()

    async def offload(self) -> None:
        """Have cold storage looked after now, and make the checkpoint that it waits for."""
        if self._node.offloading is not None:
            self._node.offloading.tick()
            moved: asyncio.Future[DanubiusError | None] = asyncio.get_running_loop().create_future()
            # Two checkpoints at one position would be one.
            self.broker.commit(BARRIER, moved.set_result)
            assert await moved is None
            await self._checkpoint()

    async def drop(self) -> None:
        """Let go without a word, as after a kill."""
        if self._listens:
            await self.abandon()
        else:
            self._running.close()

    async def end(self) -> None:
        """Stop in good order."""
        if self._listens:
            await self.stop()
            return
        self.broker.acks.write()
        await self._checkpoint()
        self._running.close()


class World:
    """A disk, a store of objects and a storage server, and one broker at a time on them.

    Addresses are those of the kind, as a data directory remembers them: one world of a kind at a time.
    """

    def __init__(self, kind: str, image: Image | None = None, root: Path | None = None) -> None:
        """With a root, the data directory is below it, on a real disk."""
        self.kind = kind
        self._root = root
        self._disk = SimFiles()
        self._server_disk = SimFiles()
        self._place = f"damage-{kind}"
        self._objects = MemoryObjects(self._place)
        for info in list(self._objects.list("")):
            self._objects.delete(info.name)
        self._server: StorageServer | None = None
        self._stores: Stores | None = None
        self.said: list[str] = []
        """What the last broker logged as a warning or worse."""
        self._lay_out(image or {})

    @property
    def url(self) -> str:
        return f"memory://{self._place}"

    def _lay_out(self, image: Image) -> None:
        if self._root is not None:
            for name, data in image.items():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                (self._root / name).write_bytes(data)
            return
        for disk, root in ((self._disk, DATA), (self._server_disk, _SERVER)):
            prefix = f"{root.name}/"
            own = {name: data for name, data in image.items() if name.startswith(prefix)}
            for name in own:
                if name.endswith("/"):
                    disk.mkdir(root.parent / name)
            disk.lay_out(
                {root.parent / name: data for name, data in own.items() if not name.endswith("/")}
            )
        for name, data in image.items():
            if name.startswith("objects/"):
                self._objects.put(name.removeprefix("objects/"), [data], replace=True)

    def image(self) -> Image:
        """All of it as it is now."""
        found: Image = {}
        if self._root is not None:
            paths = [path for path in self._root.rglob("*") if path.is_file()]
            return {str(path.relative_to(self._root)): path.read_bytes() for path in paths}
        for disk in (self._disk, self._server_disk):
            found |= {str(path)[1:]: data for path, data in disk.contents().items()}
        for info in self._objects.list(""):
            found[f"objects/{info.name}"] = self._objects.get(info.name, 0, info.size)
        return found

    def _options(self) -> StandaloneOptions:
        path = DATA if self._root is None else self._root / DATA.name
        options = StandaloneOptions(path, port=0, http_port=0)
        replace = msgspec.structs.replace
        match self.kind:
            case "tier":
                tier = TierConfig(
                    url=self.url,
                    cycle_ms=1,
                    orphan_age_ms=0,
                    orphan_cycle_ms=1,
                    upload_share_percent=0,
                )
                return replace(options, tier=tier)
            case "object":
                return replace(options, ledger_store=LedgerStoreSettings("object", self.url))
            case "remote":
                url = f"grpc://127.0.0.1:{_port}"
                return replace(options, ledger_store=LedgerStoreSettings("remote", url))
            case "diskless":
                return replace(
                    options,
                    tier=TierConfig(url=self.url),
                    diskless=DisklessConfig(enabled=True, group_ms=1),
                )
            case _:
                return options

    @contextlib.asynccontextmanager
    async def broker(self, *, listens: bool = False) -> AsyncGenerator[Broker]:
        """A broker from its start on; a start that is refused raises. Whoever leaves without `end` has killed it."""
        self.said = []
        listener = _Listener(self.said)
        logger = logging.getLogger("danubius")
        logger.addHandler(listener)
        try:
            if self.kind == "remote":
                self._serve()
            files = self._disk if self._root is None else LocalFiles()
            broker = Broker(self._options(), files, listens=listens)
            await broker.start()
            try:
                yield broker
            finally:
                await broker.drop()
        finally:
            self._stop_serving()
            logger.removeHandler(listener)

    def _serve(self) -> None:
        self._stores = Stores(lambda name: LocalLedgerStore(self._server_disk, _SERVER / name))
        self._server = StorageServer(self._stores)
        global _port
        _port = self._server.bind("127.0.0.1", _port)
        # The stores are not started: by the clock they would move and finish pool files, in a slow history only.
        self._server.start()

    def _stop_serving(self) -> None:
        if self._server is not None and self._stores is not None:
            self._server.stop(0.0)
            self._stores.close()
            self._server = self._stores = None


class _Listener(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        known = logging.makeLogRecord({}).__dict__
        extra = {key: value for key, value in record.__dict__.items() if key not in known}
        self._said.append(f"{record.getMessage()} {extra or ''}".strip())
