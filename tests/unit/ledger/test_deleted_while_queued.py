"""A topic that is deleted while its batches wait to be written must not disturb what is written with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from danubius.ledger.local import LocalLedgerStore
from danubius.sim.disk import SimFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.errors import DanubiusError

DIRECTORY = Path("/data/ledgers")


def test_the_others_of_its_group_are_written_whole(
    make_bench: type[Any], fill: Callable[..., list[bytes]]
) -> None:
    files = SimFiles()
    bench = make_bench(LocalLedgerStore(files, DIRECTORY))
    doomed, kept = bench.open(1), bench.open(2)
    fill(doomed, 5)
    payloads = fill(kept, 5)
    answers: list[DanubiusError | None] = []
    bench.storage.flush(answers.append)
    doomed.delete()  # its memory is free before the storage thread comes to it
    bench.settle()
    assert answers == [None]
    bench.evict()
    assert bench.read_all(kept, 0) == payloads

    again = make_bench(LocalLedgerStore(files, DIRECTORY))
    metas = kept.snapshot()
    again.storage.recover_files({2: metas})
    assert again.read_all(again.open(2, metas), 0) == payloads
    bench.storage.check()
