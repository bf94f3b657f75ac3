"""A second reader, written from docs/internals/record-batch.md alone, with nothing of Danubius in it.

It reads the frozen batches byte by byte in the plainest way. If page and code ever part, one of the two readers fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lz4.block
import pytest
import zstandard

FOLDER = Path(__file__).parent / "record-batch-v1"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
LZ4: Any = lz4.block
KEYS, KEY_NULLS, TIMES, ATTRIBUTES, SPARSE, EXPIRES, CHUNK = 1, 2, 4, 8, 16, 32, 64


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def pad8(size: int) -> int:
    return -(-size // 8) * 8


class Reader:
    """Reads numbers and columns one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def numbers(self, count: int, size: int, *, signed: bool) -> list[int]:
        start, self.at = self.at, pad8(self.at + count * size)
        return [
            int.from_bytes(self.data[at : at + size], "little", signed=signed)
            for at in range(start, start + count * size, size)
        ]

    def values(self, count: int) -> list[bytes]:
        offsets = self.numbers(count + 1, 4, signed=True)
        assert offsets[0] == 0
        start, self.at = self.at, pad8(self.at + offsets[count])
        return [
            self.data[start + offsets[index] : start + offsets[index + 1]] for index in range(count)
        ]


def read(batch: bytes) -> dict[str, Any]:
    def field(at: int, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(batch[at : at + size], "little", signed=signed)

    assert batch[:4] == b"DNRB"
    assert field(4, 4) == len(batch) == 88 + pad8(field(84, 4))
    assert field(20, 4) == crc32c(batch[24:])
    assert batch[24] == 1
    codec, flags, count = batch[25], field(26, 2), field(28, 4)
    stored = batch[88 : 88 + field(84, 4)]
    if codec == 1:
        stored = LZ4.decompress(stored, uncompressed_size=field(80, 4))
    elif codec == 2:
        stored = zstandard.decompress(stored, max_output_size=field(80, 4))
    reader = Reader(stored)
    assert len(reader.data) == field(80, 4)
    found: dict[str, Any] = {
        "codec": ["NONE", "LZ4", "ZSTD"][codec],
        "epoch": field(16, 4),
        "producer_id": field(32, 8),
        "producer_epoch": field(40, 4),
        "schema_version": field(44, 4),
        "base_sequence": field(48, 8),
        "schema_id": field(72, 8),
        "payloads": [value.hex() for value in reader.values(count)],
        **read_optional(reader, flags, count, field(56, 8, signed=True)),
    }
    if flags & EXPIRES:
        assert codec == 0
        found["expires_us"] = reader.numbers(1, 8, signed=True)[0]
        assert found["expires_us"] == field(len(batch) - 8, 8, signed=True)
    if flags & CHUNK:
        assert count == 1
        found["is_chunk"] = True
    found["offsets"] = [field(8, 8) + delta for delta in found.pop("deltas")]
    assert reader.at == len(reader.data)
    assert field(56, 8, signed=True) == found["publish_times_us"][0]
    assert field(64, 8, signed=True) == max(found["publish_times_us"])
    return found


def read_optional(reader: Reader, flags: int, count: int, time_us: int) -> dict[str, Any]:
    keys: list[str | None] = [None] * count
    hashes = [0] * count
    times = [time_us] * count
    maps: list[dict[str, str]] = [{} for _ in range(count)]
    deltas = list(range(count))
    if flags & KEYS:
        bitmap = [255] * count
        if flags & KEY_NULLS:
            bitmap = reader.numbers((count + 7) // 8, 1, signed=False)
        values = reader.values(count)
        for index in range(count):
            if bitmap[index // 8] >> index % 8 & 1:
                keys[index] = values[index].hex()
        hashes = reader.numbers(count, 4, signed=False)
    if flags & TIMES:
        times = reader.numbers(count, 8, signed=True)
    if flags & ATTRIBUTES:
        ends = reader.numbers(count + 1, 4, signed=True)
        names, texts = reader.values(ends[count]), reader.values(ends[count])
        for index in range(count):
            for pair in range(ends[index], ends[index + 1]):
                maps[index][names[pair].decode()] = texts[pair].decode()
    if flags & SPARSE:
        deltas = reader.numbers(count, 4, signed=True)
    return {
        "keys": keys,
        "key_hashes": hashes,
        "publish_times_us": times,
        "attributes": maps,
        "deltas": deltas,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_written_from_the_page_reads_the_frozen_batches(name: str) -> None:
    batch = bytes.fromhex((FOLDER / f"{name}.hex").read_text())
    assert read(batch) == json.loads((FOLDER / f"{name}.json").read_text())


def test_the_crc_of_the_page_has_the_published_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
