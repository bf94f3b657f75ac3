"""Requests that two readers could cut in two ways are refused; all others are read as before."""

from __future__ import annotations

import h11
import pytest

from danubius.edge.rest.strict_heads import StrictBuffer, make_strict


def connection() -> tuple[h11.Connection, StrictBuffer]:
    made = h11.Connection(h11.SERVER)
    return made, make_strict(made)


def read_all(made: h11.Connection) -> list[type]:
    """The kinds of the events until more bytes are needed."""
    kinds: list[type] = []
    while (event := made.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        kinds.append(type(event))
    return kinds


REFUSED = {
    b"GET / HTTP/1.1\nhost: x\n\n": "line feed",
    b"GET / HTTP/1.1\nhost: x\r\n\r\n": "line feed",
    b"GET / HTTP/1.1\r\nhost: x\n\r\n": "line feed",
    b"GET / HTTP/1.1\r\nhost: x\r\n\n": "line feed",
    b"\nGET / HTTP/1.1\r\nhost: x\r\n\r\n": "line feed",
    b"GET / HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n": "folded",
    b"GET / HTTP/1.1\r\nhost: x\r\na: b\r\n\tc\r\n\r\n": "folded",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n": "beside",
    b"POST / HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n": "beside",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n": "more than one",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n": "more than one",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5, 5\r\n\r\n": "more than one",
    b"GET / HTTP/1.2\r\nhost: x\r\n\r\n": "another version",
    b"POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n": "of HTTP/1.1",
}


@pytest.mark.parametrize("head", REFUSED)
@pytest.mark.parametrize("is_dripped", [False, True])
def test_ambiguous_heads_are_refused(head: bytes, is_dripped: bool) -> None:
    made, buffer = connection()
    pieces = [bytes([byte]) for byte in head] if is_dripped else [head]
    with pytest.raises(h11.RemoteProtocolError):
        for piece in pieces:
            made.receive_data(piece)
            read_all(made)
    assert REFUSED[head] in buffer.problem


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length : 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\rfoo: bar\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: \x00\r\n\r\n",
    ],
)
def test_what_h11_refuses_stays_refused(head: bytes) -> None:
    made, _ = connection()
    made.receive_data(head)
    with pytest.raises(h11.RemoteProtocolError):
        read_all(made)


@pytest.mark.parametrize("is_dripped", [False, True])
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\na\n\nb",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\na\n\nb\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: y\r\n\r\n",
    ],
)
def test_plain_requests_are_read(request_bytes: bytes, is_dripped: bool) -> None:
    made, _ = connection()
    kinds: list[type] = []
    for piece in [bytes([byte]) for byte in request_bytes] if is_dripped else [request_bytes]:
        made.receive_data(piece)
        kinds += read_all(made)
    assert kinds[0] is h11.Request
    assert kinds[-1] is h11.EndOfMessage


def test_trailers_are_as_strict() -> None:
    made, buffer = connection()
    made.receive_data(
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\nGET / HTTP/1.1\r\n"
    )
    with pytest.raises(h11.RemoteProtocolError):
        read_all(made)
    assert "line feed" in buffer.problem


def test_a_body_is_not_read_as_a_head() -> None:
    """What follows the head in the same bytes is nobody's line."""
    made, _ = connection()
    made.receive_data(
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na\nb"
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    assert read_all(made)[0] is h11.Request
