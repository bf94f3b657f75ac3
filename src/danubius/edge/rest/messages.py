"""Messages as HTTP carries them: JSON in, JSON out, and the record batches between.

A payload is text, base64 or JSON on its way in, exactly one of them. On its way out it is text if it is UTF-8, else
base64; the same holds for keys.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from danubius.edge.rest.bounds import ANSWER_BYTES_MAX, MESSAGES_MAX, ON_THREAD_BYTES
from danubius.errors import InvalidArgument
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from danubius.model.buffers import Buffer
    from danubius.record.batch import RecordBatch

_ONE_PAYLOAD: Final = {
    "oneOf": [{"required": ["text"]}, {"required": ["base64"]}, {"required": ["json"]}],
    "not": {"required": ["key", "key_base64"]},
}


class NewMessage(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True
):
    """A message to publish: exactly one of `text`, `base64` and `json`, the rest as needed."""

    text: str | UnsetType = UNSET
    """The payload as text; it is stored as UTF-8."""
    base64: bytes | UnsetType = UNSET
    """The payload as base64; it is stored decoded."""
    json: msgspec.Raw | UnsetType = UNSET
    """The payload as JSON of any kind; it is stored as it is written here."""
    key: str | UnsetType = UNSET
    """The key as text."""
    key_base64: bytes | UnsetType = UNSET
    """The key as base64."""
    attributes: dict[str, str] = {}
    """Names and values of your own."""

    def payload(self) -> bytes:
        given = [value for value in (self.text, self.base64, self.json) if value is not UNSET]
        if len(given) != 1:
            raise InvalidArgument(
                f"a message has {len(given)} payloads; give exactly one of text, base64 and json"
            )
        value = given[0]
        return value.encode() if isinstance(value, str) else bytes(value)

    def key_bytes(self) -> bytes | None:
        if self.key is not UNSET and self.key_base64 is not UNSET:
            raise InvalidArgument("a message has two keys; give key or key_base64, not both")
        if self.key is not UNSET:
            return self.key.encode()
        return None if self.key_base64 is UNSET else self.key_base64


NewMessages = Annotated[
    list[Annotated[NewMessage, msgspec.Meta(extra_json_schema=_ONE_PAYLOAD)]],
    msgspec.Meta(min_length=1, max_length=10_000),
]


class SeenMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Either `text` or `base64` is its payload."""

    topic: str
    """`/namespace/topic`; of a partitioned topic, the partition."""
    offset: int
    """Its position in the topic."""
    publish_time_us: int
    """Microseconds since 1970, UTC."""
    text: str | UnsetType = UNSET
    """The payload, if it is UTF-8."""
    base64: bytes | UnsetType = UNSET
    """The payload, if it is not."""
    key: str | UnsetType = UNSET
    """The key, if there is one and it is UTF-8."""
    key_base64: bytes | UnsetType = UNSET
    """The key, if there is one and it is not UTF-8."""
    attributes: dict[str, str] = {}
    """What its producer attached."""
    redelivery_count: int = 0
    """How often it was delivered before."""


def see(topic: str, batch: RecordBatch, start: int, stop: int, again: int = 0) -> list[SeenMessage]:
    """The records [start, stop) of a batch."""
    offsets, times = batch.offsets(), batch.publish_times_us()
    payloads, keys, attributes = batch.payloads(), batch.keys(), batch.attributes()
    return [
        _see_one(
            SeenMessage(
                topic,
                offsets[index],
                times[index],
                attributes=attributes[index],
                redelivery_count=again,
            ),
            payloads[index],
            keys[index],
        )
        for index in range(start, stop)
    ]


def _see_one(bare: SeenMessage, payload: bytes, key: bytes | None) -> SeenMessage:
    text, base64 = _text_or_bytes(payload)
    key_text, key_base64 = (UNSET, UNSET) if key is None else _text_or_bytes(key)
    return msgspec.structs.replace(
        bare, text=text, base64=base64, key=key_text, key_base64=key_base64
    )


def _text_or_bytes(value: bytes) -> tuple[str | UnsetType, bytes | UnsetType]:
    try:
        return value.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, value


class Slice:
    """Some records of one batch."""

    __slots__ = ("batch", "start", "stop")

    def __init__(self, batch: RecordBatch, start: int, stop: int) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop

    @property
    def is_large(self) -> bool:
        """Whether unpacking it would hold up the loop."""
        return self.batch.header.body_bytes > ON_THREAD_BYTES


def slices(payload: Sequence[Buffer], first: int, end: int) -> Iterator[Slice]:
    """The records with an offset in [first, end), batch by batch; nothing is unpacked."""
    data = payload[0] if len(payload) == 1 else b"".join(payload)
    for batch in iter_batches(data, verify=False):
        offsets = batch.offsets()
        start, stop = bisect_left(offsets, first), bisect_left(offsets, end)
        if start < stop:
            yield Slice(batch, start, stop)


class Filling:
    """An answer that takes messages until it is full: by their number, or by their bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = min(limit, MESSAGES_MAX)
        self._bytes = 0
        self.messages: list[SeenMessage] = []

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= self._limit or self._bytes >= ANSWER_BYTES_MAX

    def take(self, topic: str, part: Slice, again: int = 0) -> int:
        """Take as much of a slice as there is room for, at least one record; returns where its rest begins."""
        batch = part.batch
        average = max(1, batch.header.body_bytes // len(batch))
        room = min(
            self._limit - len(self.messages), max(1, (ANSWER_BYTES_MAX - self._bytes) // average)
        )
        stop = min(part.stop, part.start + room)
        self._bytes += average * (stop - part.start)
        self.messages += see(topic, batch, part.start, stop, again)
        return stop
