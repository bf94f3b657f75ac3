"""Backends that a storage server keeps ledgers in: memory, a directory, or whatever OpenDAL reaches.

Each backend is a function from the name of a store to a LedgerStore; the stores of one backend lie apart.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import DataDirectoryInUse, InvalidArgument
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.memory import MemoryLedgerStore
from danubius.runtime.files import LocalFiles
from danubius.runtime.privacy import is_open_to_others
from danubius.tier.connect import open_objects
from danubius.tier.object_ledgers import ObjectLedgerStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from danubius.ledger.store import LedgerStore
    from danubius.runtime.files import Files

LOCAL_FILES_MAX: Final = 512
"""Files of one store that are kept open for writing."""

log = logging.getLogger(__name__)


class Backend(NamedTuple):
    """Where stores are, and how to open and to end it."""

    place: str
    """For people; nothing in it is secret."""
    open_store: Callable[[str], LedgerStore]
    close: Callable[[], None]


def open_backend(scheme: str, options: Mapping[str, str]) -> Backend:
    """Raises InvalidArgument for options that do not fit, and what the backend raises."""
    if scheme == "memory":
        return _memory(options)
    if scheme == "local":
        return _local(options, LocalFiles())
    return _objects(scheme, options)


def _memory(options: Mapping[str, str]) -> Backend:
    _refuse_unknown("memory", options, ())
    kept: dict[str, MemoryLedgerStore] = {}

    def open_store(name: str) -> LedgerStore:
        return kept.setdefault(name, MemoryLedgerStore())

    return Backend("memory", open_store, lambda: None)


def _local(options: Mapping[str, str], files: Files) -> Backend:
    _refuse_unknown("local", options, ("path",))
    if not options.get("path"):
        raise InvalidArgument("the backend local needs a directory: --option path=DIRECTORY")
    directory = Path(options["path"])
    files.mkdir(directory, sync=True)
    if is_open_to_others(directory):
        log.warning(
            "other users of this machine may look into the directory of the ledgers: chmod go= shuts them out",
            extra={"directory": directory},
        )
    try:
        lock = files.lock(directory / "lock")
    except DataDirectoryInUse as error:
        raise DataDirectoryInUse(
            f"{directory} is in use by another storage server, or by a broker"
        ) from error

    def open_store(name: str) -> LedgerStore:
        # Every ledger has a file of its own: a server is restarted while brokers go on, and ledgers that share files
        # are taken up by the process that began them alone. What an earlier one did not sync, names above all, is
        # synced here: nobody else knows of it.
        if files.exists(directory / name):
            files.sync_all(directory / name)
        return LocalLedgerStore(
            files, directory / name, open_files_max=LOCAL_FILES_MAX, small_bytes=0
        )

    return Backend(f"local {directory.resolve()}", open_store, lock.release)


def _objects(scheme: str, options: Mapping[str, str]) -> Backend:
    if "://" not in scheme:
        # Where the bucket, the host and the like are options too; a directory is an address always.
        given = dict(options)
        root = given.pop("root", "") if scheme == "fs" else ""
        scheme, options = f"{scheme}://{root}", given
    objects = open_objects(scheme, options)

    def open_store(name: str) -> LedgerStore:
        return ObjectLedgerStore(objects, f"{name}/")

    return Backend(objects.url, open_store, objects.close)


def _refuse_unknown(scheme: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        allowed = f"it has {', '.join(known)}" if known else "it has none"
        raise InvalidArgument(f"the backend {scheme} has no option {unknown[0]!r}; {allowed}")
