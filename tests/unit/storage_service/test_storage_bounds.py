"""What keeps a storage server within its bounds, and what its command says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from danubius.cli.root import cli
from danubius.errors import DanubiusError, Overloaded
from danubius.ledger.entry import LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.ledger_file import LedgerHeader
from danubius.storage_service import messages
from danubius.storage_service.backends import open_backend
from danubius.storage_service.bounds import DATA_BYTES_MAX, READERS_MAX
from danubius.storage_service.calls import Calls
from danubius.storage_service.claims import Claim
from danubius.storage_service.figures import Figures
from danubius.storage_service.stores import Stamp, Stores

REF = LedgerRef(7, 1)
HEADER = LedgerHeader(7, 1, 0, 1, 0)


def test_slow_readers_leave_room_for_others() -> None:
    memory = MemoryLedgerStore()
    stores = Stores(lambda _: memory)
    stores.write(
        Stamp("b", Claim(1, 1), 1),
        lambda store: store.create(REF, HEADER, [bytes(3 * DATA_BYTES_MAX)]),
        1.0,
    )
    calls = Calls(stores, Figures())
    request = messages.ReadRequest(
        store="b", ref={"topic_id": 7, "ledger_id": 1}, count=3 * DATA_BYTES_MAX
    )
    slow = [calls.Read(request, 1.0) for _ in range(READERS_MAX)]
    for reader in slow:
        assert len(next(reader).data) == DATA_BYTES_MAX
    with pytest.raises(Overloaded, match="try again"):
        next(calls.Read(request, 1.0))
    slow.pop().close()  # pyright: ignore[reportAttributeAccessIssue]
    pieces = list(calls.Read(request, 1.0))
    assert sum(len(piece.data) for piece in pieces) == 3 * DATA_BYTES_MAX
    for reader in slow:
        assert len(list(reader)) == 2


def test_figures_count_calls_and_bytes() -> None:
    figures = Figures()
    figures.called("Read", "OK", 0.002)
    figures.wrote(10)
    figures.read(20)
    figures.count_stores(lambda: 3)
    value = figures.registry.get_sample_value
    assert value("danubius_storage_calls_total", {"method": "Read", "status": "OK"}) == 1
    assert value("danubius_storage_written_bytes_total") == 10
    assert value("danubius_storage_read_bytes_total") == 20
    assert value("danubius_storage_stores") == 3


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("local", {}, "path=DIRECTORY"),
        ("local", {"path": "/x", "root": "/y"}, "has no option 'root'; it has path"),
        ("memory", {"path": "/x"}, "it has none"),
        ("s4", {}, "s4"),
        ("s3", {"buckett": "b"}, "did you mean 'bucket'"),
        ("fs", {}, "needs a whole path"),
    ],
)
def test_a_backend_that_cannot_be_is_refused(
    scheme: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(DanubiusError, match=words):
        open_backend(scheme, options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--backend'"),
        (["--backend", "memory", "--listen", "6660"], "is no HOST:PORT"),
        (["--backend", "memory", "--listen", "a:99999"], "is no HOST:PORT"),
        (["--backend", "memory", "--option", "x"], "--option"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["storage-server", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_the_help_has_examples() -> None:
    done = CliRunner().invoke(cli, ["storage-server", "--help"])
    assert done.exit_code == 0
    assert "danubius storage-server --backend local --option path=ledgers" in done.output
