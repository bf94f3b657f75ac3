"""A small group that is written and made durable in one go, and when that would not be enough."""

from __future__ import annotations

import pytest

from danubius.model.limits import KIB
from danubius.sim.disk import SimFiles
from danubius.wal.config import JournalConfig
from unit.wal.journal_owner import Owner, reopen

CONFIG = JournalConfig(file_bytes=1024 * KIB, files_max=8, fill_bytes=8 * KIB)


def test_synced_records_survive_power_loss_whatever_is_filled_ahead_of_them() -> None:
    for seed in range(8):
        owner = Owner(SimFiles(seed=seed), config=CONFIG)
        tokens = [f"r{number}" for number in range(400 + seed)]
        for token in tokens:
            owner.commit(token, size=20)
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == tokens


def test_a_synced_record_takes_those_with_it_that_were_only_written() -> None:
    for seed in range(30):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a")
        owner.commit("written", sync=False)
        owner.commit("b")
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == ["a", "written", "b"]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_record_that_failed_does_not_come_back(operation: str) -> None:
    for seed in range(40):
        owner = Owner(SimFiles(seed=seed))
        owner.commit("a", "b")
        owner.files.fail(operation)
        owner.append("failed")
        owner.turn()
        owner.commit("c")
        assert [tokens for tokens, _ in owner.failed] == [["failed"]]
        owner.files.crash(seed)
        assert reopen(owner.files).bodies == ["a", "b", "c"]
