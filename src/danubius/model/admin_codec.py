"""Administration requests and replies to bytes and back.

Invariant: a request that comes out of `decode_request` or `build_request` has passed its `check`; anything else is
InvalidArgument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from danubius.errors import InvalidArgument
from danubius.model.admin import ADMIN_REPLIES, AdminRequest, Request
from danubius.model.admin_replies import AdminReply
from danubius.model.unknown_fields import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RequestT = TypeVar("RequestT", bound=Request)

_encoder: Final = msgspec.msgpack.Encoder()
_request_decoder: Final = msgspec.msgpack.Decoder(AdminRequest)
_reply_decoder: Final = msgspec.msgpack.Decoder(AdminReply)


class _Tag(msgspec.Struct, frozen=True, gc=False):
    """Of a request nothing but what it is called."""

    request: str


_tag_decoder: Final = msgspec.msgpack.Decoder(_Tag)
_KINDS: Final = {kind.__struct_config__.tag: kind for kind in ADMIN_REPLIES}

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
        said = explain(problem, _kind_of(data))
        raise InvalidArgument(f"the request is not understood: {said}") from problem
    request.check()
    return request


def build_request(kind: type[RequestT], fields: Mapping[str, object]) -> RequestT:
    """Make a request from what was read elsewhere; text is taken for numbers and truth values where they belong."""
    try:
        request = msgspec.convert(fields, kind, strict=False)
    except (ValueError, RecursionError) as problem:
        said = explain(problem, kind)
        raise InvalidArgument(f"the request is not understood: {said}") from problem
    request.check()
    return request


def _kind_of(data: bytes | memoryview | msgspec.Raw) -> object:
    """Which request it wants to be; any, if it does not say."""
    try:
        tag = _tag_decoder.decode(data).request
    except (ValueError, RecursionError):
        return AdminRequest
    return _KINDS.get(tag, AdminRequest)
