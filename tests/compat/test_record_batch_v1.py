"""Frozen record batches of format version 1: they decode for ever, and are still what encoding gives.

`record-batch-v1/NAME.json` says what a batch holds, `NAME.hex` is the batch, 32 bytes a line. The files never change;
a new feature adds new ones. Compressors may change from release to release, so compressed batches are only decoded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from danubius.record.batch import Codec, RecordBatch, stamp
from danubius.record.encode import encode
from danubius.record.scan import scan

FOLDER = Path(__file__).parent / "record-batch-v1"
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "record-batch.md"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
PRODUCER_FIELDS = ["producer_id", "producer_epoch", "base_sequence", "schema_id", "schema_version"]


def frozen(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


def described(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    told["payloads"] = [bytes.fromhex(each) for each in told["payloads"]]
    told["keys"] = [None if each is None else bytes.fromhex(each) for each in told["keys"]]
    return told


def test_the_frozen_batches_cover_every_codec_and_column() -> None:
    headers = [RecordBatch.parse(frozen(name)).header for name in NAMES]
    assert {header.codec for header in headers} == set(Codec)
    flags = 0
    for header in headers:
        flags |= header.flags
    assert flags == 0b1111111


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_batch_decodes_to_what_it_held(name: str) -> None:
    told = described(name)
    batch = RecordBatch.parse(frozen(name))
    assert batch.header.codec == Codec[told["codec"]]
    assert batch.payloads() == told["payloads"]
    assert batch.keys() == told["keys"]
    assert list(batch.key_hashes()) == told["key_hashes"]
    assert batch.attributes() == told["attributes"]
    assert list(batch.publish_times_us()) == told["publish_times_us"]
    assert list(batch.offsets()) == told["offsets"]
    assert batch.header.epoch == told["epoch"]
    assert batch.expires_us == told.get("expires_us")
    assert batch.is_chunk == told.get("is_chunk", False)
    assert [getattr(batch.header, field) for field in PRODUCER_FIELDS] == [
        told[field] for field in PRODUCER_FIELDS
    ]
    assert scan(frozen(name)).valid_bytes == len(frozen(name))


@pytest.mark.parametrize("name", [name for name in NAMES if "every-column-" not in name])
def test_encoding_still_gives_the_frozen_bytes(name: str) -> None:
    told = described(name)
    first, *_, last = [*told["offsets"], told["offsets"][-1]]
    told_at = {offset: index for index, offset in enumerate(told["offsets"])}
    # A sparse batch is cut from a dense one: records that were not selected are filled in.
    rows = [told_at.get(offset) for offset in range(first, last + 1)]
    batch = encode(
        [b"other" if row is None else told["payloads"][row] for row in rows],
        publish_time_us=[told["publish_times_us"][row or 0] for row in rows],
        keys=[None if row is None else told["keys"][row] for row in rows],
        attributes=[None if row is None else told["attributes"][row] for row in rows],
        expires_us=told.get("expires_us"),
        is_chunk=told.get("is_chunk", False),
        **{field: told[field] for field in PRODUCER_FIELDS},
    )
    stamp(batch, first, told["epoch"])
    view = RecordBatch.parse(batch).select(
        [index for index, row in enumerate(rows) if row is not None]
    )
    assert bytes(view.buffer) == frozen(name)


def test_the_worked_example_of_the_page_is_a_frozen_batch() -> None:
    block = re.search(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    lines = [line.split("|")[0].split(":", 1)[1] for line in block[1].splitlines() if ":" in line]
    assert bytes.fromhex("".join(lines)) == frozen("two-messages-with-keys")
