"""At least 100,000 malformed inputs against the codec: only DanubiusError leaves come out.

Half of the mutated batches get a right checksum, as a hostile producer would give them, so that the
columns are reached. The seeds are fixed: a failure names the seed and the number of the input, and repeats.
"""

from __future__ import annotations

import contextlib
import random
import struct
from typing import TYPE_CHECKING

import pytest

from danubius.errors import DanubiusError
from danubius.record.batch import (
    Codec,
    Header,
    RecordBatch,
    check_batch,
    check_thoroughly,
    read_header,
    stamp,
)
from danubius.record.checksum import crc32c
from danubius.record.encode import encode
from danubius.record.scan import iter_batches, scan
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INPUTS_PER_SEED = sized(6_500, 13_000)
SEEDS = range(8)
INTERESTING = [0, 1, 7, 8, 255, 0x7FFF, 0xFFFF, 2**24, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1]


def sound_batches() -> list[bytes]:
    plain = encode([b"a", b"bb", b""], publish_time_us=1)
    batches = [
        plain,
        encode([b"x" * 30], publish_time_us=1),
        encode([b"ab"] * 20, publish_time_us=2),
    ]
    for codec in Codec:
        full = encode(
            [b"repeat" * 20, b"", b"repeat" * 10, b"tail"],
            publish_time_us=[4, 3, 2, 1],
            keys=[b"key", None, b"key", b""],
            attributes=[{"name": "value", "é": ""}, None, {"name": "value"}, {}],
            codec=codec,
        )
        stamp(full, 100, 1)
        batches.append(full)
    batches.append(bytearray(RecordBatch.parse(batches[-3]).select([0, 2]).buffer))
    return [bytes(batch) for batch in batches]


def flip_bits(rng: random.Random, batch: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)


def set_number(rng: random.Random, batch: bytearray) -> None:
    at = rng.randrange(len(batch) // 4) * 4
    number = struct.unpack_from("<I", batch, at)[0]
    choices = [*INTERESTING, number + 1, number - 1, number + 8, number - 8, number * 2]
    struct.pack_into("<I", batch, at, rng.choice(choices) & 0xFFFFFFFF)


def set_header_byte(rng: random.Random, batch: bytearray) -> None:
    batch[rng.randrange(4, min(88, len(batch)))] = rng.randrange(256)


def cut_or_extend(rng: random.Random, batch: bytearray) -> None:
    if rng.random() < 0.5:
        del batch[rng.randrange(len(batch)) :]
    else:
        batch += rng.randbytes(rng.randint(1, 64))
    if len(batch) >= 8 and rng.random() < 0.5:
        del batch[len(batch) & ~7 :]
        struct.pack_into("<I", batch, 4, len(batch))


def copy_range(rng: random.Random, batch: bytearray) -> None:
    size = rng.randint(1, 32)
    source, target = rng.randrange(len(batch)), rng.randrange(len(batch))
    piece = batch[source : source + size]
    batch[target : target + len(piece)] = piece


def scramble_all(rng: random.Random, batch: bytearray) -> None:
    kept = rng.choice([0, 4, 8, 25])  # random bytes, with and without a plausible beginning
    batch[kept:] = rng.randbytes(rng.randrange(200))


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    flip_bits,
    set_number,
    set_number,
    set_header_byte,
    cut_or_extend,
    copy_range,
    scramble_all,
]


def decode_everything(batch: RecordBatch, rng: random.Random, *, with_arrow: bool) -> None:
    """Every way to look at a batch either works or raises a DanubiusError; what works is consistent."""
    count = len(batch)
    middle = rng.randrange(count)
    columns: list[Callable[[], Sequence[object]]] = [
        batch.payloads,
        batch.keys,
        batch.key_hashes,
        batch.publish_times_us,
        batch.attributes,
        batch.offsets,
    ]
    others: list[Callable[[], object]] = [
        lambda: batch.payload(middle),
        lambda: batch.end_offset,
        lambda: decode_part(batch.slice(middle, count)),
        lambda: decode_part(batch.select(sorted({0, middle, count - 1}))),
    ]
    if with_arrow:
        others.append(lambda: batch.to_arrow().validate(full=True))
    rng.shuffle(others)
    for other in others:
        with contextlib.suppress(DanubiusError):
            other()
    for column in columns:
        with contextlib.suppress(DanubiusError):
            assert len(column()) == count


def decode_part(part: RecordBatch) -> None:
    """What was cut from a batch is a sound batch, though its columns may be as malformed as they were."""
    again = RecordBatch.parse(part.buffer)
    again.payloads()
    again.attributes()


def verdict(check: Callable[[bytes], Header], data: bytes) -> Header | str:
    try:
        return check(data)
    except DanubiusError as error:
        return repr(error)


def attack(data: bytes, rng: random.Random, *, with_arrow: bool) -> bool:
    """Run the whole codec on an input; says whether the columns were reached."""
    found = scan(data)
    assert 0 <= found.valid_bytes <= len(data)
    assert verdict(check_batch, data) == verdict(check_thoroughly, data)
    looks: list[Callable[[], object]] = [
        lambda: read_header(data),
        lambda: list(iter_batches(data)),
    ]
    for look in looks:
        with contextlib.suppress(DanubiusError):
            look()
    try:
        batch = RecordBatch.parse(data)
    except DanubiusError:
        return False
    decode_everything(batch, rng, with_arrow=with_arrow)
    return True


@pytest.mark.grows
@pytest.mark.parametrize("seed", SEEDS)
def test_malformed_batches_raise_only_danubius_errors(seed: int) -> None:
    rng = random.Random(seed)
    sound = sound_batches()
    reached = 0
    for number in range(INPUTS_PER_SEED):
        batch = bytearray(rng.choice(sound))
        for _ in range(rng.choice([1, 1, 2])):
            if len(batch) >= 8:
                rng.choice(MUTATIONS)(rng, batch)
        if len(batch) >= 24 and rng.random() < 0.5:
            struct.pack_into("<I", batch, 20, crc32c(bytes(batch[24:])))
        try:
            reached += attack(bytes(batch), rng, with_arrow=number % 32 == 0)
        except Exception as error:
            error.add_note(f"seed {seed}, input {number}: {batch.hex()}")
            raise
    # The attack must get past the header often enough to mean something.
    assert reached > INPUTS_PER_SEED // 20


@pytest.mark.grows
def test_the_inputs_are_many_thousands() -> None:
    assert INPUTS_PER_SEED * len(SEEDS) >= sized(50_000, 100_000)
