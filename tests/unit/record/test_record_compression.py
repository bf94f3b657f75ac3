"""Compressed bodies: what hostile frames may not do, and what a missing package says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from danubius.errors import InvalidArgument, InvalidBatch
from danubius.record import compression
from danubius.record.batch import Codec
from danubius.record.encode import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = bytes(1024)


def zstd_frame(body: bytes, **options: Any) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(**options)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return writer.compress(body) + writer.flush()


def test_a_zstd_frame_may_leave_out_its_size() -> None:
    frame = zstd_frame(BODY, write_content_size=False)
    assert compression.decompress(Codec.ZSTD, frame, len(BODY)) == BODY


@pytest.mark.parametrize(
    "frame",
    [
        zstandard.ZstdCompressor().compress(bytes(1 << 26)),
        zstd_frame(bytes(1 << 26), write_content_size=False),
        zstd_frame(BODY, write_content_size=False, window_log=27),
        zstd_frame(BODY) * 2,
        zstd_frame(BODY)[:-1],
        zstd_frame(BODY) + b"\0",
        zstd_frame(BODY[1:]),
        b"",
        b"\x50\x2a\x4d\x18\x00\x00\x00\x00",
    ],
    ids=[
        "states-more",
        "holds-more",
        "wide-window",
        "two-frames",
        "cut-off",
        "extended",
        "holds-less",
        "empty",
        "skippable",
    ],
)
def test_a_zstd_frame_that_is_not_the_stated_body_is_refused(frame: bytes) -> None:
    with pytest.raises(InvalidBatch):
        compression.decompress(Codec.ZSTD, frame, len(BODY))


def test_an_lz4_block_that_is_not_the_stated_body_is_refused() -> None:
    block = compression.compress(Codec.LZ4, BODY)
    assert compression.decompress(Codec.LZ4, memoryview(block), len(BODY)) == BODY
    for wrong, size in (
        (block, 1000),
        (block, 2000),
        (block[:-1], 1024),
        (block + b"\0", 1024),
        (b"", 8),
    ):
        with pytest.raises(InvalidBatch):
            compression.decompress(Codec.LZ4, wrong, size)


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in an environment that has neither package: None in sys.modules makes an import fail."""
    for name in ("lz4.block", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    compression._package.cache_clear()
    yield
    compression._package.cache_clear()


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize(("codec", "package"), [(Codec.LZ4, "lz4"), (Codec.ZSTD, "zstandard")])
def test_a_missing_package_says_what_to_install(codec: Codec, package: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{package}: pip install 'danubius\[compression\]'"):
        encode([bytes(100)], publish_time_us=1, codec=codec)
    encode([bytes(100)], publish_time_us=1)


@pytest.mark.usefixtures("no_packages")
def test_a_package_that_was_missing_is_found_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidArgument):
        compression.compress(Codec.ZSTD, BODY)
    monkeypatch.setitem(sys.modules, "zstandard", zstandard)
    assert compression.compress(Codec.ZSTD, BODY)
