"""What callers hand to a producer, checked and measured before anything of it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from danubius.client.core.batching import Draft, check_columns, message_size, message_sizes
from danubius.errors import InvalidArgument, MessageTooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ItemT = TypeVar("ItemT")


def to_bytes(payload: object) -> bytes:
    """A payload that may come as another kind of bytes."""
    if isinstance(payload, bytes | bytearray):
        return bytes(payload)
    if isinstance(payload, memoryview):
        return payload.tobytes()
    hint = ": encode text with .encode()" if isinstance(payload, str) else ""
    raise InvalidArgument(f"the payload is {type(payload).__name__}, it must be bytes{hint}")


def check_key(key: object) -> None:
    """Refuse a key that is not bytes."""
    if type(key) is not bytes:
        hint = ": encode text with .encode()" if isinstance(key, str) else ""
        raise InvalidArgument(f"the key is {type(key).__name__}, it must be bytes{hint}")


def checked_size(payload: bytes, key: bytes | None, attributes: Mapping[str, str] | None) -> int:
    """The size of a message with a key or attributes."""
    if key is not None:
        check_key(key)
    try:
        return message_size(payload, key, attributes)
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"attributes must map str to str: {error}") from error


def to_draft(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    attributes: Sequence[Mapping[str, str] | None] | None,
) -> Draft:
    """The columns of a `send_many`, of one length each."""
    draft = Draft(
        _column("payloads", payloads),
        None if keys is None else _column("keys", keys),
        None if attributes is None else _column("attributes", attributes),
    )
    check_columns(draft)
    return draft


def measure(draft: Draft, message_bytes_max: int) -> list[int]:
    """The size of every message of a `send_many`, or the refusal of the largest one."""
    try:
        sizes = message_sizes(draft)
    except (TypeError, AttributeError, UnicodeEncodeError) as error:
        raise InvalidArgument(
            f"payloads and keys must be bytes, attributes must map str to str: {error}"
        ) from error
    largest = max(sizes, default=0)
    if largest > message_bytes_max:
        raise MessageTooLarge(
            f"message {sizes.index(largest)} has {largest} bytes with its key and attributes,"
            f" the broker accepts {message_bytes_max}"
        )
    return sizes


def _column(name: str, items: Sequence[ItemT]) -> Sequence[ItemT]:
    """A column that can be measured and cut; an array or a deque becomes a list."""
    if isinstance(items, list | tuple):
        return items
    if isinstance(items, str | bytes | bytearray | memoryview) or not hasattr(items, "__len__"):
        raise InvalidArgument(
            f"{name} is a {type(items).__name__}; it must be a list, or another sequence with a length"
        )
    return list(items)
