"""Frames between the broker and its gRPC front, and how a stream of bytes is cut into them.

A frame is a header (the bytes of its body, a number, a call, a kind) and a body. What the number means depends on the
kind: the method of a CALL, the status of an END, the bytes of a CREDIT, milliseconds of a STOP. Sans-IO: bytes in,
frames out, however the bytes were cut on their way. Invariant: a reader holds less than one frame and what it was fed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from danubius.errors import ProtocolViolation

_HEADER: Final = struct.Struct("<IIQB")
HEADER_BYTES: Final = _HEADER.size
NUMBER_MAX: Final = 2**32 - 1
CALL_MAX: Final = 2**64 - 1

# ---------------------------------------------------------------- kinds

OPEN: Final = 1
"""To the front: listen here (`Open`)."""
BOUND: Final = 2
"""To the broker: these are the ports (`Bound`)."""
FAILED: Final = 3
"""To the broker: why there are none, as a sentence."""
SERVE: Final = 4
"""To the front: let clients in, with these methods (`Serve`)."""
STOP: Final = 5
"""To the front: take no more calls, end those under way after so many milliseconds, then end."""
CALL: Final = 6
"""To the broker: a call of a method; the body is the request."""
CALL_FROM: Final = 7
"""The same of a method that asks who called: a byte with the length of the peer's address, that, the request."""
CANCEL: Final = 8
"""To the broker: whoever called is gone."""
CREDIT: Final = 9
"""To the broker: so much of what was written to a stream has gone out."""
ANSWER: Final = 10
"""To the front: the response, and with it the end of the call."""
WRITE: Final = 11
"""To the front: one message of a stream."""
END: Final = 12
"""To the front: a call is over with this status; the body is its sentence."""
PING: Final = 13
"""To the front, which sends it back: it is alive, and takes its turns."""

KINDS: Final = frozenset(range(OPEN, PING + 1))


class Frame(NamedTuple):
    """One of them."""

    kind: int
    number: int = 0
    call: int = 0
    body: bytes = b""


class Method(msgspec.Struct, frozen=True):
    """A method that the front serves, and the number it has in a CALL."""

    number: int
    service: str
    name: str
    is_stream: bool = False
    wants_peer: bool = False
    """Whether a call says who made it: asking that takes time, and most methods do not look."""


class Open(msgspec.Struct, frozen=True):
    """Where to listen; port 0 picks a free one."""

    host: str
    port: int
    admin_port: int


class Bound(msgspec.Struct, frozen=True):
    """Where the front listens."""

    port: int
    admin_port: int


class Serve(msgspec.Struct, frozen=True):
    """What is served on the two ports."""

    data: tuple[Method, ...]
    admin: tuple[Method, ...]


encode_struct: Final = msgspec.json.Encoder().encode
decode_open: Final = msgspec.json.Decoder(Open).decode
decode_bound: Final = msgspec.json.Decoder(Bound).decode
decode_serve: Final = msgspec.json.Decoder(Serve).decode


def header(kind: int, body_bytes: int = 0, number: int = 0, call: int = 0) -> bytes:
    """What stands before a body of this many bytes."""
    return _HEADER.pack(body_bytes, number, call, kind)


def encode(frame: Frame) -> bytes:
    """A whole frame."""
    return header(frame.kind, len(frame.body), frame.number, frame.call) + frame.body


def peer_prefix(peer: str) -> bytes:
    """What stands before the request in a CALL_FROM; an address that is too long to be one is cut."""
    text = peer.encode(errors="replace")[:255]
    return bytes((len(text),)) + text


def split_peer(body: bytes) -> tuple[str, bytes]:
    """The peer and the request of a CALL_FROM."""
    if not body or len(body) <= body[0]:
        raise ProtocolViolation("a call ends before its peer's address does")
    end = 1 + body[0]
    return body[1:end].decode(errors="replace"), body[end:]


class FrameReader:
    """Cuts what it is fed into frames."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._data: bytes | bytearray = b""
        self._at = 0

    @property
    def held_bytes(self) -> int:
        """What was fed and is in no frame yet."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        if self._at == len(self._data):
            self._data = data
        elif isinstance(self._data, bytearray):
            del self._data[: self._at]
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._data += data
        self._at = 0

    def take(self) -> Frame | None:
        """The next frame; None: it is not there yet. ProtocolViolation if it cannot be one."""
        data, at = self._data, self._at
        if len(data) - at < HEADER_BYTES:
            return None
        size, number, call, kind = _HEADER.unpack_from(data, at)
        if kind not in KINDS or size > self._body_bytes_max:
            raise ProtocolViolation(f"a frame of kind {kind} with {size:,} bytes")
        start = at + HEADER_BYTES
        end = start + size
        if end > len(data):
            return None
        if isinstance(data, bytes):
            body = data[start:end]
        else:
            with memoryview(data) as view:
                body = bytes(view[start:end])
        if end == len(data):
            self._data, self._at = b"", 0
        else:
            self._at = end
        return Frame(kind, number, call, body)
