"""Administration requests and replies to bytes and back.

Invariant: a request that comes out of `decode_request` or `build_request` has passed its `check`; anything else is
InvalidArgument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from danubius.errors import InvalidArgument
from danubius.model.admin import AdminRequest, Request
from danubius.model.admin_replies import AdminReply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RequestT = TypeVar("RequestT", bound=Request)

_encoder: Final = msgspec.msgpack.Encoder()
_request_decoder: Final = msgspec.msgpack.Decoder(AdminRequest)
_reply_decoder: Final = msgspec.msgpack.Decoder(AdminReply)

encode_request: Final[Callable[[AdminRequest], bytes]] = _encoder.encode
encode_reply: Final[Callable[[AdminReply], bytes]] = _encoder.encode
decode_reply: Final[Callable[[bytes | memoryview | msgspec.Raw], AdminReply]] = (
    _reply_decoder.decode
)


def decode_request(data: bytes | memoryview | msgspec.Raw) -> AdminRequest:
    """Read a request from MessagePack; InvalidArgument if it is none, or asks for what cannot be."""
    try:
        request = _request_decoder.decode(data)
    except (ValueError, RecursionError) as problem:  # msgspec's errors and UnicodeDecodeError
        raise InvalidArgument(f"the request is not understood: {problem}") from problem
    request.check()
    return request


def build_request(kind: type[RequestT], fields: Mapping[str, object]) -> RequestT:
    """Make a request from what was read elsewhere; text is taken for numbers and truth values where they belong."""
    try:
        request = msgspec.convert(fields, kind, strict=False)
    except (ValueError, RecursionError) as problem:
        raise InvalidArgument(f"the request is not understood: {problem}") from problem
    request.check()
    return request
