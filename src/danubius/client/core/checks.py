"""Arguments that callers hand to a producer, checked and measured before anything of it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

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
    except (AttributeError, TypeError, UnicodeEncodeError):
        raise InvalidArgument(_wrong_attributes(attributes)) from None


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
    except (TypeError, AttributeError, UnicodeEncodeError):
        raise InvalidArgument(_wrong_message(draft)) from None
    largest = max(sizes, default=0)
    if largest > message_bytes_max:
        raise MessageTooLarge(
            f"message {sizes.index(largest)} has {largest} bytes with its key and attributes,"
            f" the broker accepts {message_bytes_max}"
        )
    return sizes


def _wrong_message(draft: Draft) -> str:
    """What cannot be measured in a `send_many`, by its place."""
    for index, payload in enumerate(draft.payloads):
        key = draft.keys[index] if draft.keys is not None else None
        attributes = draft.attributes[index] if draft.attributes is not None else None
        try:
            message_size(to_bytes(payload), None, None)
            if key is not None:
                check_key(key)
            checked_size(b"", None, attributes)
        except InvalidArgument as error:
            return f"message {index}: {error.message}"
    return "payloads and keys must be bytes, attributes must map str to str"


def _wrong_attributes(attributes: object) -> str:
    if not hasattr(attributes, "items"):
        return (
            f"the attributes are {type(attributes).__name__}, they must be a mapping of str to str"
        )
    for name, value in cast("Mapping[object, object]", attributes).items():
        for what, text in (("name of the attribute", name), ("attribute", value)):
            if not isinstance(text, str):
                hint = ": decode it with .decode()" if isinstance(text, bytes) else ": use str(...)"
                return f"the {what} {name!r} is {type(text).__name__}, it must be str{hint}"
            if not _is_text(text):
                return f"the {what} {name!r} is no text that UTF-8 can hold: it has half of a surrogate pair"
    return "attributes must map str to str"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _column(name: str, items: Sequence[ItemT]) -> Sequence[ItemT]:
    """A column that can be measured and cut; an array or a deque becomes a list."""
    if isinstance(items, list | tuple):
        return items
    if isinstance(items, str | bytes | bytearray | memoryview) or not hasattr(items, "__len__"):
        raise InvalidArgument(
            f"{name} is a {type(items).__name__}; it must be a list, or another sequence with a length"
        )
    return list(items)
