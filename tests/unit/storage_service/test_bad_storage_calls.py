"""Requests that make no sense, bytes that are no requests, data that were damaged, and servers that do not answer."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from danubius.errors import InvalidArgument, StorageFailed, StorageFull
from danubius.ledger.entry import LedgerRef
from danubius.ledger.memory import MemoryLedgerStore
from danubius.record.checksum import crc32c
from danubius.record.ledger_file import LedgerHeader, encode_header
from danubius.storage_service import messages
from danubius.storage_service.bounds import CALL_SECONDS_MAX, MESSAGE_BYTES_MAX
from danubius.storage_service.messages import SERVICE
from danubius.storage_service.remote_ledgers import RemoteLedgerStore, parse_address
from patience import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.ledger.store import Append
    from unit.storage_service.conftest import Serve

REF = LedgerRef(7, 1)
HEADER = LedgerHeader(7, 1, 0, 1, 0)
WRITER = {"store": "b", "epoch": 1, "process": 1, "call": 1}
NAMED = {"topic_id": 7, "ledger_id": 1}
CALL_S = CALL_SECONDS_MAX - 1.0
"""As long as a call may take."""
SHORT_S = 0.3
"""A deadline that passes."""


class Raw:
    """Sends whatever it is given."""

    def __init__(self, port: int) -> None:
        self._channel: Any = grpc.insecure_channel(f"127.0.0.1:{port}")

    def send(self, method: str, data: bytes, timeout: float | None = CALL_S) -> Any:
        path = f"/{SERVICE.full_name}/{method}"
        described = SERVICE.methods_by_name[method]
        if described.server_streaming:
            return list(self._channel.unary_stream(path)(data, timeout=timeout))
        if described.client_streaming:
            return self._channel.stream_unary(path)(iter([data]), timeout=timeout)
        return self._channel.unary_unary(path)(data, timeout=timeout)

    def refusal(self, method: str, data: bytes, timeout: float | None = CALL_S) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.send(method, data, timeout)
        error: Any = caught.value
        return error.code().name, error.details()

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def raw(serve: Serve) -> Iterator[Raw]:
    memory = MemoryLedgerStore()
    sender = Raw(serve(lambda _: memory).port)
    yield sender
    sender.close()


def test_bytes_that_are_no_message_are_refused_by_every_method(raw: Raw) -> None:
    for method in SERVICE.methods:
        code, text = raw.refusal(method.name, b"\xff\xff\xff\xff")
        assert code == "INVALID_ARGUMENT", method.name
        assert method.input_type.full_name in text


def test_an_empty_request_is_refused_by_every_method(raw: Raw) -> None:
    for method in SERVICE.methods:
        assert raw.refusal(method.name, b"")[0] == "INVALID_ARGUMENT", method.name


@pytest.mark.parametrize(
    "wrong",
    [
        {"store": "../../etc"}, {"store": "A"}, {"store": "-a"}, {"store": "a" * 65}, {"store": "ü"},
        {"epoch": 0}, {"process": 0}, {"call": 0},
    ],
)  # fmt: skip
def test_a_wrong_writer_is_refused(raw: Raw, wrong: dict[str, Any]) -> None:
    request = messages.FenceRequest(writer=WRITER | wrong)
    assert raw.refusal("Fence", request.SerializeToString())[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("append", "code"),
    [
        ({"data": b"x", "crc32c": crc32c(b"x")}, "INVALID_ARGUMENT"),
        ({"ref": {"topic_id": (1 << 64) - 1}}, "INVALID_ARGUMENT"),
        ({"ref": NAMED, "at": 1 << 63}, "INVALID_ARGUMENT"),
        ({"ref": NAMED, "create": True}, "INVALID_ARGUMENT"),
        ({"ref": NAMED, "create": True, "data": bytes(64), "crc32c": crc32c(bytes(64))},
         "INVALID_ARGUMENT"),
        ({"ref": NAMED, "create": True, "at": 8, "data": encode_header(HEADER),
          "crc32c": crc32c(encode_header(HEADER))}, "INVALID_ARGUMENT"),
        ({"ref": NAMED, "at": 64, "data": b"x", "crc32c": 1}, "DATA_LOSS"),
        ({"ref": NAMED, "at": 64, "data": b"x", "crc32c": crc32c(b"x")}, "INTERNAL"),
    ],
)  # fmt: skip
def test_a_wrong_append_is_refused(raw: Raw, append: dict[str, Any], code: str) -> None:
    request = messages.AppendRequest(writer=WRITER, appends=[append])
    found, text = raw.refusal("Append", request.SerializeToString())
    assert found == code
    assert text


def test_wrong_rows_positions_and_sizes_are_refused(raw: Raw) -> None:
    wrong = {
        "AppendIndex": messages.AppendIndexRequest(
            writer=WRITER, ref=NAMED, header=encode_header(HEADER), rows=bytes(41)
        ),
        "Read": messages.ReadRequest(store="b", ref=NAMED, count=1 << 40),
        "ReadIndex": messages.ReadIndexRequest(store="b", ref=NAMED, rows=1 << 40),
        "Truncate": messages.TruncateRequest(writer=WRITER, ref=NAMED, data_bytes=1 << 63),
        "DeleteTopic": messages.DeleteTopicRequest(writer=WRITER, topic_id=(1 << 64) - 1),
        "Recover": messages.RecoverRequest(writer=WRITER, known=[{"epoch": 1}]),
    }
    for method, request in wrong.items():
        assert raw.refusal(method, request.SerializeToString())[0] == "INVALID_ARGUMENT", method


def test_a_call_without_a_deadline_or_with_a_far_one_is_refused(raw: Raw) -> None:
    request = messages.ListRequest(store="b").SerializeToString()
    for timeout in (None, 3600.0):
        code, text = raw.refusal("List", request, timeout)
        assert (code, "deadline" in text) == ("INVALID_ARGUMENT", True)


def test_a_message_above_the_bound_is_refused_and_the_server_goes_on(raw: Raw) -> None:
    assert raw.refusal("Append", bytes(MESSAGE_BYTES_MAX + 1))[0] == "RESOURCE_EXHAUSTED"
    assert raw.send("List", messages.ListRequest(store="b").SerializeToString()) == []


def test_a_method_that_there_is_not_is_unimplemented(raw: Raw) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw._channel.unary_unary(f"/{SERVICE.full_name}/Explode")(b"", timeout=CALL_S)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


class FullStore(MemoryLedgerStore):
    def append_many(self, appends: Sequence[Append]) -> None:
        raise StorageFull("no space left")


def test_a_full_backend_is_full_for_the_broker(serve: Serve) -> None:
    full = FullStore()
    with pytest.raises(StorageFull, match=r"is full: no space left"):
        serve(lambda _: full).connect().create(REF, HEADER)


class HangingStore(MemoryLedgerStore):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()

    def append_many(self, appends: Sequence[Append]) -> None:
        self.may_go.wait(HANG_S)
        super().append_many(appends)


def test_a_backend_that_hangs_costs_a_deadline_and_what_comes_late_does_no_harm(
    serve: Serve,
) -> None:
    hanging = HangingStore()
    patient: RemoteLedgerStore = serve(lambda _: hanging).connect("b", deadline_s=CALL_S)
    patient.claim()
    address = f"grpc://{patient._address}"
    hasty = RemoteLedgerStore(address, "b", 1, process=patient._process, deadline_s=SHORT_S)
    hasty._numbers = patient._numbers
    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"no answer within 0.3 s|is busy"):
            hasty.create(REF, HEADER, [b"first"])
    assert patient.read(REF, 0, 10) == b""  # reading does not wait for who writes
    hanging.may_go.set()
    patient.create(REF, HEADER, [b"second"])
    patient.append(REF, 70, [b" and on"])
    assert patient.read(REF, 64, 100) == b"second and on"
    hasty.close()


def test_a_server_that_takes_the_connection_and_says_nothing_costs_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        store = RemoteLedgerStore(address, "b", 1, deadline_s=SHORT_S)
        for call in (store.claim, lambda: store.read(REF, 0, 1), lambda: store.append(REF, 64, [])):
            with pytest.raises(StorageFailed, match=r"127\.0\.0\.1"):
                call()
        store.close()


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    store = RemoteLedgerStore(f"grpc://127.0.0.1:{port}", "b", 1)
    with pytest.raises(StorageFailed, match=rf"127.0.0.1:{port}: it is not available"):
        store.read(REF, 0, 1)
    store.close()
    with pytest.raises(StorageFailed, match="closed"):
        store.read(REF, 0, 1)


@pytest.mark.parametrize("url", ["", "host", "host:", "http://host:1", "host:port", "grpc://h:1/x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="grpc://host:port"):
        parse_address(url)


def test_more_than_a_call_may_have_is_sent_in_several(serve: Serve) -> None:
    memory = MemoryLedgerStore()
    store: RemoteLedgerStore = serve(lambda _: memory).connect()
    data = bytes(range(256)) * (9 * 4096)  # 9 MiB
    store.create(REF, HEADER, [data])
    assert store.read(REF, 64, len(data) + 10) == data
    store.append(REF, 64 + len(data), [data, data])
    assert store.read(REF, 64, 4 * len(data)) == 3 * data
