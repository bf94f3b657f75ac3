"""What was written is what is read, whichever way it went to the disk."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from danubius.errors import StorageFailed, StorageFull
from danubius.runtime.large_file import ALIGNMENT, PIECE_BYTES, LargeFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SIZES = [
    (),
    (0,),
    (1,),
    (ALIGNMENT,),
    (ALIGNMENT - 1, 2),
    (PIECE_BYTES,),
    (PIECE_BYTES - 1, 1, 1),
    (64, 3 * PIECE_BYTES + 5, 0, 100),
    (PIECE_BYTES + ALIGNMENT, PIECE_BYTES),
]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_holds_what_was_written(tmp_path: Path, sizes: Sequence[int], direct: bool) -> None:
    path, parts = tmp_path / "file", [os.urandom(size) for size in sizes]
    with closing(LargeFile(path, direct=direct)) as file:
        for part in parts:
            file.write(part)
        file.sync()
    assert path.read_bytes() == b"".join(parts)


def test_any_buffer_will_do(tmp_path: Path) -> None:
    with closing(LargeFile(tmp_path / "file")) as file:
        for part in (b"a", bytearray(b"b"), memoryview(b"xcx")[1:2]):
            file.write(part)
        file.sync()
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"another's")
    with pytest.raises(StorageFailed, match="cannot open"):
        LargeFile(path)
    assert path.read_bytes() == b"another's"


def test_a_disk_of_another_alignment_gets_it_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    refused: list[int] = []

    def picky(descriptor: int, data: Any, at: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(at)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwritev", picky)
    content = os.urandom(2 * PIECE_BYTES + 1)
    with closing(LargeFile(tmp_path / "file")) as file:
        was_direct = file.is_direct
        file.write(content)
        assert not file.is_direct
        file.sync()
    assert refused == [0] * was_direct  # asked once, if at all
    assert (tmp_path / "file").read_bytes() == content


def test_a_file_system_without_a_way_past_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def old(path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = real(path, flags, mode)
        if flags & os.O_DIRECT:
            os.close(descriptor)  # the file was made all the same
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", old)
        with closing(LargeFile(tmp_path / "file")) as file:
            assert not file.is_direct
            file.write(b"content")
            file.sync()
    assert (tmp_path / "file").read_bytes() == b"content"


def test_writes_that_are_done_in_part_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def lazy(descriptor: int, data: Any, at: int) -> int:
        return real(descriptor, [data[0][:70_000]], at)

    monkeypatch.setattr(os, "pwritev", lazy)
    content = os.urandom(PIECE_BYTES + 10)
    with closing(LargeFile(tmp_path / "file")) as file:
        file.write(content)
        file.sync()
    assert (tmp_path / "file").read_bytes() == content


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StorageFull), closing(LargeFile(tmp_path / "file")) as file:
        file.write(bytes(PIECE_BYTES))


def test_a_write_that_makes_no_progress_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(*_: Any) -> int:
        return 0

    monkeypatch.setattr(os, "pwritev", stuck)
    with (
        pytest.raises(StorageFailed, match="no progress"),
        closing(LargeFile(tmp_path / "file")) as file,
    ):
        file.write(bytes(PIECE_BYTES))
