"""Ledger stores of a broker: beside its journal, on a storage server, or in an object store.

Invariant: a data directory keeps to the store that it began with. `ledger-store.json` in it says which, and whether the
store has been claimed: from then on a store that does not know this broker is the wrong one, or has lost its data. A
directory without that file keeps its ledgers itself.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from danubius.errors import DataDirectoryDamaged, InvalidArgument
from danubius.ledger.local import LocalLedgerStore
from danubius.model.setting_marks import Address, Options
from danubius.redaction import redact_address
from danubius.storage_service.claimed_ledgers import ClaimedLedgerStore
from danubius.storage_service.claims import Claim
from danubius.tier.connect import open_objects
from danubius.tier.object_ledgers import ObjectLedgerStore
from danubius.tier.objects import ObjectLimits

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.broker.data_directory import DataDirectory
    from danubius.ledger.store import LedgerStore
    from danubius.runtime.files import Files

Kind = Literal["local", "remote", "object"]

FILE_NAME: Final = "ledger-store.json"


class LedgerStoreSettings(msgspec.Struct, frozen=True):
    """Where ledgers are kept; the journal is in the data directory always."""

    kind: Kind = "local"
    """local: in the data directory; remote: on a storage server; object: in an object store."""
    url: Address = ""
    """Of the store, if it is not local: grpc://host:port, or s3://bucket/prefix and the like."""
    options: Options = {}
    """Options of an object store, such as endpoint and region; secrets are better given by the environment."""
    deadline_ms: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 15_000
    """One call of the store takes no longer; then it counts as failed and is tried again."""

    def check(self) -> None:
        """Raises InvalidArgument for what does not fit together."""
        if self.kind != "local" and not self.url:
            example = "grpc://127.0.0.1:6660" if self.kind == "remote" else "s3://bucket/prefix"
            raise InvalidArgument(f"kind is {self.kind}, so url is needed, such as {example}")
        if self.kind == "remote" and self.options:
            raise InvalidArgument("a remote store has no options: its server is given them")


class _Record(msgspec.Struct, frozen=True):
    """What `ledger-store.json` says."""

    kind: Kind
    url: str
    is_claimed: bool


def open_ledger_store(
    settings: LedgerStoreSettings, directory: DataDirectory, files: Files, open_files_max: int
) -> LedgerStore:
    """The store that the settings name, if it is this directory's. Blocks; raises DanubiusError."""
    settings.check()
    if settings.kind == "local" and (settings.url or settings.options):
        raise InvalidArgument(
            "the address or options of a ledger store are given, but ledgers are kept in the data directory: choose "
            "--ledger-store remote or object, or leave them out"
        )
    record = _known(directory, files)
    if record is not None and record.is_claimed:
        _compare(record, settings, directory.path)
    elif record is not None or settings.kind != "local":
        # Nothing was stored yet: a start that found no store may be followed by one with another.
        record = _Record(
            settings.kind, redact_address(settings.url), is_claimed=settings.kind == "local"
        )
        _write(directory, files, record)
    if settings.kind == "local":
        return LocalLedgerStore(files, directory.ledgers, open_files_max=open_files_max)
    assert record is not None
    directory.raise_format()
    open_store = _open_remote if settings.kind == "remote" else _open_objects
    store, previous_epoch = open_store(settings, directory, is_known=record.is_claimed)
    if record.is_claimed and not previous_epoch:
        store.close()
        raise DataDirectoryDamaged(
            f"the ledgers of {directory.path} should be in {record.url}, but nothing is known of this broker "
            f"({directory.broker_id}) there: it is another store, or it has lost its data"
        )
    if not record.is_claimed:
        _write(directory, files, msgspec.structs.replace(record, is_claimed=True))
    return store


def _known(directory: DataDirectory, files: Files) -> _Record | None:
    """Where the ledgers of this directory are; None: it is new."""
    path = directory.path / FILE_NAME
    if files.exists(path):
        try:
            return msgspec.json.decode(files.read_bytes(path), type=_Record)
        except msgspec.MsgspecError as error:
            raise DataDirectoryDamaged(f"{path} is damaged: {error}") from error
    return _Record("local", "", is_claimed=True) if directory.known_epoch else None


def _write(directory: DataDirectory, files: Files, record: _Record) -> None:
    files.write_atomic(directory.path / FILE_NAME, msgspec.json.encode(record) + b"\n")


def _compare(record: _Record, settings: LedgerStoreSettings, path: Path) -> None:
    if record.kind == settings.kind and redact_address(record.url) == redact_address(settings.url):
        return
    if record.kind == "local":
        raise InvalidArgument(
            f"{path} keeps its ledgers itself, and a directory stays with the store that it began with: leave out "
            f"--ledger-store {settings.kind}, or choose another --data-dir"
        )
    moved = (
        f"; if the same store has another address now, change it in {path / FILE_NAME}"
        if record.kind == settings.kind
        else ""
    )
    raise InvalidArgument(
        f"{path} keeps its ledgers in {record.url}, and a directory stays with the store that it began with: start it "
        f"with --ledger-store {record.kind} --ledger-store-url {record.url}, or choose another --data-dir{moved}"
    )


def _open_remote(
    settings: LedgerStoreSettings, directory: DataDirectory, *, is_known: bool
) -> tuple[LedgerStore, int]:
    try:
        from danubius.storage_service.remote_ledgers import RemoteLedgerStore
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("danubius"):
            raise
        raise InvalidArgument(
            f"a remote store needs {missing.name}: pip install 'danubius[grpc]'"
        ) from missing
    store = RemoteLedgerStore(
        settings.url,
        directory.broker_id,
        directory.epoch,
        deadline_s=settings.deadline_ms / 1000,
    )
    try:
        return store, store.claim(is_known=is_known)
    except BaseException:
        store.close()
        raise


def _open_objects(
    settings: LedgerStoreSettings, directory: DataDirectory, *, is_known: bool
) -> tuple[LedgerStore, int]:
    limits = ObjectLimits(deadline_s=settings.deadline_ms / 1000)
    objects = open_objects(settings.url, settings.options, limits)
    ledgers = ObjectLedgerStore(objects, f"{directory.broker_id}/")
    store = ClaimedLedgerStore(ledgers, objects.close)
    try:
        claim = Claim(directory.epoch, secrets.randbits(64) | 1)
        return store, store.claim(claim, is_known=is_known)
    except BaseException:
        store.close()
        raise
