"""One conformance suite for every LedgerStore driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from danubius.errors import DataDirectoryTooNew, LedgerDamaged, StorageFailed
from danubius.ledger.entry import LedgerRef
from danubius.ledger.local import LocalLedgerStore
from danubius.ledger.memory import MemoryLedgerStore
from danubius.ledger.pool import LedgerPool
from danubius.ledger.store import SMALL_BYTES
from danubius.record.ledger_file import (
    FILE_HEADER_BYTES,
    INDEX_MAGIC,
    INDEX_ROW_BYTES,
    BlockRow,
    LedgerHeader,
    decode_header,
    decode_rows,
    encode_header,
    encode_row,
)
from danubius.runtime.files import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.ledger.store import LedgerStore

REF = LedgerRef(0x1234, 5)
HEADER = LedgerHeader(0x1234, 5, 100, 7, 1_700_000_000_000)


def row(number: int) -> bytes:
    return encode_row(BlockRow(number, 64 + number, 1, 0, 0, 1))


@pytest.fixture(
    params=["memory", "local", "local without sharing", "local with one open file", "local mixed"]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerStore:
    if request.param == "memory":
        return MemoryLedgerStore()
    files_max = 1 if "one" in request.param else 512
    small_bytes = {"local": SMALL_BYTES, "local mixed": 2}.get(request.param, 0)
    return LocalLedgerStore(
        LocalFiles(), tmp_path / "ledgers", open_files_max=files_max, small_bytes=small_bytes
    )


def test_a_new_ledger_holds_its_header_alone(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    assert decode_header(store.read(REF, 0, 1000)) == HEADER
    assert len(store.read(REF, 0, 1000)) == FILE_HEADER_BYTES


def test_a_new_ledger_may_be_made_with_its_first_bytes(store: LedgerStore) -> None:
    store.create(REF, HEADER, [b"abc", memoryview(b"defg")])
    assert decode_header(store.read(REF, 0, 64)) == HEADER
    assert store.read(REF, 64, 100) == b"abcdefg"
    store.append(REF, 71, [b"hi"])
    assert store.read(REF, 64, 100) == b"abcdefghi"


def test_what_was_appended_is_read_at_any_position(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append(REF, 64, [b"abc", memoryview(b"defg")])
    store.append(REF, 71, [bytearray(b"hi")])
    assert store.read(REF, 64, 9) == b"abcdefghi"
    assert store.read(REF, 66, 3) == b"cde"


def test_a_read_beyond_the_end_is_short(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append(REF, 64, [b"abc"])
    assert store.read(REF, 66, 100) == b"c"
    assert store.read(REF, 500, 100) == b""


def test_an_absent_ledger_reads_as_empty(store: LedgerStore) -> None:
    assert store.read(REF, 0, 10) == b""
    assert store.read_index(REF, 0, 10) == b""
    assert store.list() == []


def test_an_append_is_repeated_at_its_position(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append(REF, 64, [b"half of"])
    store.append(REF, 64, [b"the whole thing"])
    assert store.read(REF, 64, 100) == b"the whole thing"


def test_appending_to_an_absent_ledger_fails(store: LedgerStore) -> None:
    with pytest.raises(StorageFailed):
        store.append(REF, 64, [b"abc"])


def test_create_forgets_what_was_there(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append(REF, 64, [b"old"])
    store.append_index(REF, HEADER, 0, row(0))
    store.create(REF, HEADER._replace(base_offset=9))
    assert decode_header(store.read(REF, 0, 100)).base_offset == 9
    assert store.read(REF, 64, 10) == b""
    assert store.read_index(REF, 0, 1) == b""


def test_index_rows_are_read_by_number(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append_index(REF, HEADER, 0, row(0) + row(1))
    store.append_index(REF, HEADER, 2, row(2))
    assert store.read_index(REF, 0, 3) == row(0) + row(1) + row(2)
    assert store.read_index(REF, 1, 1) == row(1)
    assert store.read_index(REF, 2, 9) == row(2)


def test_index_rows_are_repeated_at_their_number(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append_index(REF, HEADER, 0, row(0) + row(8))
    store.append_index(REF, HEADER, 1, row(1) + row(2))
    assert store.read_index(REF, 0, 9) == row(0) + row(1) + row(2)


def test_truncate_cuts_both_files_and_never_lengthens(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append(REF, 64, [b"abcdef"])
    store.append_index(REF, HEADER, 0, row(0) + row(1))
    store.truncate(REF, 67, 1)
    assert store.read(REF, 64, 100) == b"abc"
    assert store.read_index(REF, 0, 9) == row(0)
    store.truncate(REF, 1000, 50)
    assert store.read(REF, 64, 100) == b"abc"
    assert store.read_index(REF, 0, 9) == row(0)


def test_truncate_of_an_absent_ledger_does_nothing(store: LedgerStore) -> None:
    store.truncate(REF, 64, 0)
    assert store.list() == []


def test_sync_takes_one_ledger_and_many(store: LedgerStore) -> None:
    refs = [LedgerRef(topic, 0) for topic in range(20)]
    for ref in refs:
        store.create(ref, HEADER)
        store.append(ref, 64, [b"abc"])
    store.append_index(refs[0], HEADER, 0, row(0))
    store.sync(refs[:1])
    store.sync(refs[1:3])
    store.sync(refs)
    store.sync([])
    assert all(store.read(ref, 64, 3) == b"abc" for ref in refs)


def test_sync_of_an_absent_ledger_fails(store: LedgerStore) -> None:
    with pytest.raises(StorageFailed):
        store.sync([REF])


def test_a_sealed_ledger_is_read_on(store: LedgerStore) -> None:
    store.create(REF, HEADER)
    store.append(REF, 64, [b"abc"])
    store.seal(REF)
    assert store.read(REF, 64, 3) == b"abc"


def test_list_names_every_ledger_in_order(store: LedgerStore) -> None:
    refs = [
        LedgerRef(1, 0),
        LedgerRef(1, 1),
        LedgerRef(1, 300),
        LedgerRef(257, 0),
        LedgerRef(1 << 40, 2),
    ]
    for ref in reversed(refs):
        store.create(ref, HEADER)
    assert store.list() == refs


def test_delete_removes_one_ledger(store: LedgerStore) -> None:
    for number in range(3):
        store.create(LedgerRef(1, number), HEADER)
    store.delete(LedgerRef(1, 1))
    store.delete(LedgerRef(1, 1))
    assert store.list() == [LedgerRef(1, 0), LedgerRef(1, 2)]
    assert store.read(LedgerRef(1, 1), 0, 10) == b""


def test_delete_topic_removes_all_of_its_ledgers_and_no_other(store: LedgerStore) -> None:
    for topic in (1, 257):
        for number in range(3):
            store.create(LedgerRef(topic, number), HEADER)
    store.delete_topic(1)
    store.delete_topic(1)
    assert {ref.topic_id for ref in store.list()} == {257}


def test_more_ledgers_than_open_files_are_written_in_turns(store: LedgerStore) -> None:
    refs = [LedgerRef(topic, 0) for topic in range(5)]
    for ref in refs:
        store.create(ref, HEADER)
    for turn in range(3):
        for ref in refs:
            store.append(ref, 64 + turn, [b"%d" % turn])
    store.close()
    assert all(store.read(ref, 64, 3) == b"012" for ref in refs)


def test_a_damaged_index_header_leaves_no_rows(tmp_path: Path) -> None:
    store = LocalLedgerStore(LocalFiles(), tmp_path)
    store.create(REF, HEADER)
    store.append_index(REF, HEADER, 0, row(0))
    path = tmp_path / "34" / "0000000000001234-00000005.index"
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    assert store.read_index(REF, 0, 1) == b""


def test_files_lie_where_the_documentation_says(tmp_path: Path) -> None:
    store = LocalLedgerStore(LocalFiles(), tmp_path, pool=make_pool(tmp_path))
    store.create(REF, HEADER, [bytes(SMALL_BYTES)])
    store.append_index(REF, HEADER, 0, row(0))
    assert sorted(path.name for path in (tmp_path / "34").iterdir()) == [
        "0000000000001234-00000005.index",
        "0000000000001234-00000005.ledger",
    ]
    (tmp_path / "34" / "lost+found").mkdir()
    (tmp_path / "34" / "x.ledger").touch()
    assert store.list() == [REF]
    store.create(LedgerRef(1, 0), HEADER)
    assert [path.name for path in (tmp_path / "pool").iterdir()] == ["00000001-0000abcd.pool"]
    assert store.list() == [LedgerRef(1, 0), REF]


def make_pool(directory: Path) -> LedgerPool:
    return LedgerPool(LocalFiles(), directory / "pool", salt=lambda: 0xABCD)


def test_file_header_bytes_are_as_documented() -> None:
    data = encode_header(HEADER)
    assert data[:8] == b"DNLG\x01\x00\x00\x00"
    assert int.from_bytes(data[8:16], "little") == 0x1234
    assert int.from_bytes(data[16:24], "little") == 5
    assert int.from_bytes(data[24:32], "little") == 100
    assert int.from_bytes(data[32:36], "little") == 7
    assert int.from_bytes(data[40:48], "little") == 1_700_000_000_000
    assert data[48:60] == bytes(12)
    assert encode_header(HEADER, INDEX_MAGIC)[:4] == b"DNLX"


def test_any_flipped_bit_of_a_file_header_is_seen() -> None:
    data = encode_header(HEADER)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerDamaged):
            decode_header(damaged)


def test_a_header_of_a_later_version_is_refused() -> None:
    data = bytearray(encode_header(HEADER))
    data[4] = 2
    from danubius.record.checksum import crc32c

    data[60:64] = crc32c(bytes(data[:60])).to_bytes(4, "little")
    with pytest.raises(DataDirectoryTooNew):
        decode_header(data)


def test_any_flipped_bit_of_an_index_row_is_seen() -> None:
    data = encode_row(BlockRow(1, 64, 300, 0xDEADBEEF, -5, 3))
    assert len(data) == INDEX_ROW_BYTES
    assert decode_rows(data) == [BlockRow(1, 64, 300, 0xDEADBEEF, -5, 3)]
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerDamaged):
            decode_rows(bytes(damaged))
    with pytest.raises(LedgerDamaged):
        decode_rows(data[:-1])
