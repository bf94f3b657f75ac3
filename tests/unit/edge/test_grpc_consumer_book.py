"""Numbers of consumers over restarts, crashes and a disk that fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from danubius.edge.grpc.data import consumer_book
from danubius.edge.grpc.data.consumer_book import FILE_NAME, ConsumerBook, Known
from danubius.model.subscription import SubscriptionType
from danubius.runtime.files import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _known(number: int, consumer: str = "c") -> Known:
    return Known(number, "/default/t", "s", consumer, SubscriptionType.KEY_SHARED, ("eu-*",))


def _open(folder: Path) -> ConsumerBook:
    book = ConsumerBook(folder, LocalFiles(), asyncio.get_running_loop())
    book.open()
    return book


async def test_what_was_kept_is_known_after_a_restart(tmp_path: Path) -> None:
    book = _open(tmp_path)
    await book.keep(_known(1))
    await book.keep(_known(2, "d"))
    await book.keep(_known(1, "other"))
    book.close()
    again = _open(tmp_path)
    assert (again.find(1), again.find(2), again.find(3)) == (
        _known(1, "other"), _known(2, "d"), None,
    )  # fmt: skip
    again.close()


async def test_it_is_on_disk_when_keep_returns(tmp_path: Path) -> None:
    book = _open(tmp_path)
    await book.keep(_known(7))
    assert b'"number":7' in (tmp_path / FILE_NAME).read_bytes()
    book.close()


async def test_what_a_crash_tore_or_a_disk_damaged_is_passed_over(tmp_path: Path) -> None:
    book = _open(tmp_path)
    for number in (1, 2, 3):
        await book.keep(_known(number))
    book.close()
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\x00rubbish\n" + lines[2][:-9])
    again = _open(tmp_path)
    assert again.find(1) == _known(1)
    assert again.find(2) is None
    assert again.find(3) is None
    await again.keep(_known(4))
    again.close()
    last = _open(tmp_path)
    assert last.find(4) == _known(4)
    last.close()


async def test_the_file_does_not_grow_with_those_who_come_again_and_again(tmp_path: Path) -> None:
    book = _open(tmp_path)
    for turn in range(consumer_book.REWRITE_LINES_MIN + 50):
        await book.keep(_known(1, f"c{turn % 2}"))
    book.close()
    lines = (tmp_path / FILE_NAME).read_bytes().splitlines()
    assert len(lines) <= 100


async def test_the_oldest_is_forgotten_beyond_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_book, "KNOWN_CONSUMERS_MAX", 3)
    book = _open(tmp_path)
    for number in range(1, 6):
        await book.keep(_known(number))
    assert [book.find(number) is not None for number in range(1, 6)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert len(book) == 3
    book.close()
