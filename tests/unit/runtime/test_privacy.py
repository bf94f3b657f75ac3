"""What is made is its owner's alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from danubius.broker.data_directory import DataDirectory
from danubius.runtime.files import LocalFiles
from danubius.runtime.privacy import is_open_to_others
from danubius.tier.file_objects import FileObjects
from danubius.wal.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(root: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (root, *root.rglob("*"))}


def test_a_data_directory_and_its_files_are_private(tmp_path: Path) -> None:
    home = DataDirectory.open(tmp_path / "a" / "data", LocalFiles(), "broker-1")
    store = SnapshotStore(LocalFiles(), home.snapshots)
    assert store is not None
    LocalFiles().mkdir(home.ledgers / "0001", sync=True)
    LocalFiles().write_atomic(home.ledgers / "0001" / "x.ledger", b"x")
    LocalFiles().open(home.journal.parent / "y", create=True).close()
    home.release()
    assert modes(tmp_path / "a") == {0o700, 0o600}


def test_objects_in_files_are_private(tmp_path: Path) -> None:
    objects = FileObjects(tmp_path / "cold")
    objects.put("a/b", [b"small"])
    assert modes(tmp_path / "cold") == {0o700, 0o600}


def test_what_is_there_already_is_left_as_it_is_and_told_apart(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o750)
    LocalFiles().mkdir(shared)
    assert shared.stat().st_mode & 0o777 == 0o750
    assert is_open_to_others(shared)
    LocalFiles().mkdir(shared / "new")
    assert not is_open_to_others(shared / "new")
    assert not is_open_to_others(tmp_path / "nowhere")
