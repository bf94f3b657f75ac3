"""The footer of an object: frozen bytes, and no bit of it may be wrong unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danubius.errors import LedgerDamaged, UnsupportedVersion
from danubius.record.checksum import crc32c
from danubius.tier.core.object_format import (
    FOOTER_BYTES,
    Footer,
    decode_footer,
    encode_footer,
    object_name,
    parse_name,
)

FOOTER = Footer(
    topic_id=0x1234,
    ledger_id=5,
    epoch=7,
    base_offset=100,
    end_offset=250,
    first_time_us=1_700_000_000_000_001,
    last_time_us=1_700_000_009_000_000,
    created_ms=1_700_000_000_000,
    data_bytes=70_000,
    index_rows=3,
    data_crc=0xDEADBEEF,
    rows_crc=0x01020304,
)
FROZEN = (
    "444e42434f4c4431010000000700000034120000000000000500000000000000"
    "6400000000000000fa0000000000000001401e18240a06004094a718240a0600"
    "0068e5cf8b010000701101000000000003000000efbeadde0403020100000000"
    "00000000000000000000000000000000000000000000000000000000f4d7c4df"
)

u32 = st.integers(0, 2**32 - 1)
u48 = st.integers(0, 2**48)


@given(
    st.builds(
        Footer,
        topic_id=u48,
        ledger_id=u48,
        epoch=u32,
        base_offset=st.integers(0, 2**40),
        end_offset=st.integers(2**40, 2**60),
        first_time_us=st.integers(-(2**60), 2**60),
        last_time_us=st.integers(-(2**60), 2**60),
        created_ms=st.integers(-(2**60), 2**60),
        data_bytes=st.integers(64, 2**40),
        index_rows=u32,
        data_crc=u32,
        rows_crc=u32,
    )
)
def test_a_footer_is_read_as_it_was_written(footer: Footer) -> None:
    data = encode_footer(footer)
    assert len(data) == FOOTER_BYTES
    assert decode_footer(data, footer.object_bytes) == footer


def test_the_bytes_are_those_of_the_first_version() -> None:
    assert encode_footer(FOOTER).hex() == FROZEN
    assert decode_footer(bytes.fromhex(FROZEN), 70_000 + 3 * 40 + 128) == FOOTER


def test_any_flipped_bit_is_seen() -> None:
    data = encode_footer(FOOTER)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerDamaged):
            decode_footer(damaged)


@pytest.mark.parametrize("size", [0, 1, FOOTER_BYTES - 1, FOOTER_BYTES + 1])
def test_a_footer_of_another_length_is_none(size: int) -> None:
    with pytest.raises(LedgerDamaged):
        decode_footer((encode_footer(FOOTER) * 2)[:size])


def test_an_object_of_another_length_is_damaged() -> None:
    with pytest.raises(LedgerDamaged, match="should have 70248"):
        decode_footer(encode_footer(FOOTER), FOOTER.object_bytes - 1)


def test_a_later_version_is_refused_as_such() -> None:
    data = bytearray(encode_footer(FOOTER))
    data[8] = 2
    data[124:] = crc32c(bytes(data[:124])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_footer(data)


@pytest.mark.parametrize("wrong", [{"data_bytes": 63}, {"end_offset": 99}])
def test_a_footer_that_contradicts_itself_is_damaged(wrong: dict[str, int]) -> None:
    with pytest.raises(LedgerDamaged, match="contradicts itself"):
        decode_footer(encode_footer(FOOTER._replace(**wrong)))


def test_the_name_says_whose_object_it_is() -> None:
    name = object_name("0123abcd", 0x1234, 5, 7)
    assert name == "0123abcd/0000000000001234/00000005-00000007.ledger"
    assert parse_name(name) == ("0123abcd", 0x1234, 5, 7)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "owner",
        "id/owner",
        "id/0000000000001234/00000005.ledger",
        "id/1234/00000005-00000007.ledger",
        "id/0000000000001234/00000005-00000007",
        "id/0000000000001234/+0000005-00000007.ledger",
        "id/0000000000001234/0000000G-00000007.ledger",
        "x/id/0000000000001234/00000005-00000007.ledger",
    ],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert parse_name(name) is None
