"""Dead letters as records: taken from one topic's log, written for another's.

The names of the attributes are those that Danube's clients know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.ack.core.ranges import RangeMap
from danubius.model.limits import MIB
from danubius.record.batch import read_header
from danubius.record.encode import encode
from danubius.record.scan import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from danubius.ack.core.ranges import Range
    from danubius.ledger.entry import Chunk
    from danubius.record.batch import Header

ORIGINAL_TOPIC: Final = "x-original-topic"
ORIGINAL_OFFSET: Final = "x-original-topic-offset"
ORIGINAL_SUBSCRIPTION: Final = "x-original-subscription"
ORIGINAL_PRODUCER: Final = "x-original-producer-id"
ORIGINAL_BROKER: Final = "x-original-broker-addr"
ATTEMPTS: Final = "x-delivery-attempt"
REASON: Final = "x-failure-reason"
POLICY: Final = "x-poison-policy"
DEAD_LETTER: Final = "dead_letter"
"""The policy by the name that Danube's clients compare with; ours is spelled with a hyphen."""
CHUNK_ID: Final = "x-chunk-id"
REDRIVEN: Final = "x-redriven"
"""How often the message was sent back; it stays with it."""

_OURS: Final = frozenset(
    {
        ORIGINAL_TOPIC,
        ORIGINAL_OFFSET,
        ORIGINAL_SUBSCRIPTION,
        ORIGINAL_PRODUCER,
        ORIGINAL_BROKER,
        ATTEMPTS,
        REASON,
        POLICY,
    }
)

READ_BYTES: Final = 4 * MIB
"""What is read, and moved, at once."""
LETTERS_MAX: Final = 1000
"""Messages that are moved at once."""


class Letter(NamedTuple):
    """One message with everything that is kept of it."""

    offset: int
    payload: bytes
    key: bytes | None
    attributes: dict[str, str]
    publish_time_us: int
    producer_id: int

    @property
    def is_piece(self) -> bool:
        """Whether it is a piece of a larger message, which stays one."""
        return CHUNK_ID in self.attributes

    @property
    def size(self) -> int:
        texts = sum(len(name) + len(value) for name, value in self.attributes.items())
        return len(self.payload) + len(self.key or b"") + texts


def read_letters(chunk: Chunk, wanted: Sequence[Range]) -> Iterator[Letter]:
    """The messages of a chunk with an offset in these rising ranges. Raises InvalidBatch."""
    places: RangeMap[bool] = RangeMap()
    for first, end in wanted:
        places.put(first, end, value=True)
    for buffer in chunk.buffers:
        for batch in iter_batches(buffer, verify=False):
            found = places.overlap(batch.base_offset, batch.end_offset)
            if not found:
                continue
            payloads, keys, times = batch.payloads(), batch.keys(), batch.publish_times_us()
            attributes = batch.attributes()
            for one in found:
                for offset in range(one.first, one.end):
                    at = offset - batch.base_offset
                    yield Letter(
                        offset,
                        payloads[at],
                        keys[at],
                        attributes[at],
                        times[at],
                        batch.header.producer_id,
                    )


def take_some(letters: Iterable[Letter], count_max: int = LETTERS_MAX) -> list[Letter]:
    """As many as are moved at once; one at least, if there is any."""
    taken: list[Letter] = []
    size = 0
    for letter in letters:
        size += letter.size
        if taken and (letter.is_piece or taken[0].is_piece):
            break  # a piece of a larger message is alone in its batch
        if taken and (len(taken) >= count_max or size > READ_BYTES):
            break
        taken.append(letter)
    return taken


def as_dead_letter(
    letter: Letter, topic: str, subscription: str, broker: str, attempts: int, reason: str
) -> Letter:
    """A message as it lies in the dead-letter topic; `broker` is the address of the one that delivered it."""
    attributes = letter.attributes | {
        ORIGINAL_TOPIC: topic,
        ORIGINAL_OFFSET: str(letter.offset),
        ORIGINAL_SUBSCRIPTION: subscription,
        ORIGINAL_PRODUCER: str(letter.producer_id),
        ORIGINAL_BROKER: broker,
        ATTEMPTS: str(attempts),
        REASON: reason,
        POLICY: DEAD_LETTER,
    }
    return letter._replace(attributes=attributes)


def revive(letter: Letter, now_us: int) -> Letter:
    """A dead letter as it is published again: a new message, so that it does not expire at once."""
    attributes = {name: text for name, text in letter.attributes.items() if name not in _OURS}
    times = attributes.get(REDRIVEN, "0")
    attributes[REDRIVEN] = str(int(times) + 1 if times.isdecimal() else 1)
    return letter._replace(attributes=attributes, publish_time_us=now_us)


def encode_letters(letters: Sequence[Letter]) -> tuple[memoryview, Header]:
    """One batch, ready to be committed."""
    keys = [letter.key for letter in letters]
    batch = encode(
        [letter.payload for letter in letters],
        publish_time_us=[letter.publish_time_us for letter in letters],
        keys=keys if any(key is not None for key in keys) else None,
        attributes=[letter.attributes for letter in letters],
        is_chunk=len(letters) == 1 and letters[0].is_piece,
    )
    return memoryview(batch), read_header(batch)


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Rising offsets as ranges."""
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
