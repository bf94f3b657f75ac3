"""Any cutting of the same bytes gives the same frames; any command survives the trip; random bytes are refused."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from typing import TYPE_CHECKING

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danubius.errors import DanubiusError
from danubius.model.file_part import FilePart
from danubius.model.policy import Backoff, Exhausted, FailurePolicy, Policies
from danubius.model.subscription import AtEarliest, AtLatest, AtOffset, AtTime, SubscriptionType
from danubius.model.topic import Dispatch, Durability, Retention, TopicSpec
from danubius.wire import commands
from danubius.wire.codec import COMMANDS
from danubius.wire.connection import Connection
from danubius.wire.frame import PAYLOAD_OPCODES
from danubius.wire.states import LEGAL, ConnectionState, Role
from proving import sized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.wire.commands import AnyCommand
    from danubius.wire.frame import Frame

MALFORMED_INPUTS = sized(20_000, 100_000)

count = st.integers(0, 2**63 - 1)
text = st.text(max_size=20)
spec = st.builds(
    TopicSpec,
    dispatch=st.sampled_from(Dispatch),
    durability=st.sampled_from(Durability),
    retention=st.none()
    | st.builds(Retention, age_ms=st.none() | count, size_bytes=st.none() | count),
    policies=st.builds(Policies, ttl_ms=count, auto_create=st.none() | st.booleans())
    | st.just(Policies()),
)
position = st.one_of(
    st.builds(AtOffset, offset=count),
    st.builds(AtTime, time_us=st.integers(-(2**63), 2**63 - 1)),
    st.just(AtEarliest()),
    st.just(AtLatest()),
)
summary = st.builds(commands.TopicSummary, text, spec, *[count] * 6)
subscription = st.builds(
    commands.SubscriptionSummary,
    text,
    st.sampled_from(SubscriptionType),
    st.lists(text, max_size=3),
    count,
    count,
    count,
    count,
)
st.register_type_strategy(TopicSpec, spec)
st.register_type_strategy(commands.TopicSummary, summary)
st.register_type_strategy(commands.SubscriptionSummary, subscription)

failure = st.builds(
    FailurePolicy,
    ack_timeout_ms=count,
    backoff=st.sampled_from(Backoff),
    jitter=st.floats(0, 1),
    redeliveries_max=st.none() | count,
    then=st.sampled_from(Exhausted),
    dead_letter_topic=text,
)
request = st.dictionaries(text, count | text, max_size=4).map(
    lambda inside: msgspec.Raw(msgspec.msgpack.encode(inside))
)

BY_ANNOTATION = {
    "Count": count,
    "FilePart | None": st.none()
    | st.builds(
        FilePart, text, text, count, count, count, st.lists(st.tuples(count, count), max_size=3)
    ),
    "Handle": st.integers(0, 2**32 - 1),
    "Unsigned": st.integers(0, 2**64 - 1),
    "Ranges": st.lists(st.tuples(count, count), max_size=20),
    "Stages": st.lists(st.tuples(count, count), max_size=20),
    "Position": position,
    "TopicSpec": spec,
    "TopicSummary": summary,
    "SubscriptionType": st.sampled_from(SubscriptionType),
    "list[TopicSummary]": st.lists(summary, max_size=4),
    "list[SubscriptionSummary]": st.lists(subscription, max_size=4),
    "list[str]": st.lists(text, max_size=4),
    "tuple[str, ...]": st.lists(text, max_size=4).map(tuple),
    "Access": st.sampled_from(commands.Access),
    "FailurePolicy | None": st.none() | failure,
    "msgspec.Raw": request,
    "str": text,
    "bool": st.booleans(),
}


def command_of(kind: type[AnyCommand]) -> st.SearchStrategy[AnyCommand]:
    return st.builds(
        kind, **{name: BY_ANNOTATION[kind.__annotations__[name]] for name in kind.__struct_fields__}
    )


def frames_from(role: Role) -> st.SearchStrategy[list[tuple[AnyCommand, int, list[bytes]]]]:
    """Whole conversations of one side; payloads around the sizes where the paths differ."""
    legal = sorted(LEGAL[ConnectionState.OPEN][role] - {commands.Opcode.GOODBYE})
    sizes = st.sampled_from([0, 1, 8, 100, 8192, 65_535, 65_536, 65_544, 200_000])
    payload = st.lists(sizes.map(lambda size: bytes([size % 251]) * size), max_size=2)
    nothing: st.SearchStrategy[list[bytes]] = st.just([])

    def framed(kind: type[AnyCommand]) -> st.SearchStrategy[tuple[AnyCommand, int, list[bytes]]]:
        carries = kind.opcode in PAYLOAD_OPCODES
        return st.tuples(
            command_of(kind), st.integers(0, 2**32 - 1), payload if carries else nothing
        )

    return st.lists(
        st.sampled_from(legal).flatmap(lambda opcode: framed(COMMANDS[opcode])), max_size=8
    )


def open_pair() -> tuple[Connection, Connection]:
    client, shard = Connection(Role.CLIENT), Connection(Role.BROKER)
    shard.receive_data(b"".join(client.send(commands.Hello(1, 2, "test"))))
    assert shard.next_event() is not None
    client.receive_data(
        b"".join(shard.send(commands.Welcome(2, "b", 17_000_000, 8_000_000, 30_000)))
    )
    assert client.next_event() is not None
    return client, shard


HELLO = b"".join(Connection(Role.CLIENT).send(commands.Hello(1, 2, "test")))


def open_broker() -> Connection:
    shard = Connection(Role.BROKER)
    shard.receive_data(HELLO)
    assert shard.next_event() is not None
    shard.send(commands.Welcome(2, "b", 17_000_000, 8_000_000, 30_000))
    return shard


def receive(connection: Connection, data: bytes, chunks: Sequence[int]) -> list[Frame]:
    """Read as a socket would, in pieces of the given sizes, over and over."""
    frames: list[Frame] = []
    rest = memoryview(data)
    sizes = itertools.cycle(chunks)
    while rest:
        window = connection.get_buffer(-1)
        size = min(len(window), len(rest), next(sizes))
        window[:size] = rest[:size]
        connection.buffer_updated(size)
        rest = rest[size:]
        while (frame := connection.next_event()) is not None:
            frames.append(frame)
    return frames


@settings(max_examples=150)
@given(
    st.sampled_from(Role).flatmap(lambda role: st.tuples(st.just(role), frames_from(role))),
    st.lists(st.integers(1, 300_000), min_size=1, max_size=5),
)
def test_any_chunking_gives_the_frames_that_were_sent(
    conversation: tuple[Role, list[tuple[AnyCommand, int, list[bytes]]]], chunks: list[int]
) -> None:
    role, sent = conversation
    client, shard = open_pair()
    sender, receiver = (client, shard) if role is Role.CLIENT else (shard, client)
    data = b"".join(b"".join(sender.send(*frame)) for frame in sent)

    received = receive(receiver, data, chunks)

    assert [(f.command, f.correlation_id, bytes(f.payload)) for f in received] == [
        (command, correlation, b"".join(payload)) for command, correlation, payload in sent
    ]


@settings(max_examples=40)
@given(frames_from(Role.BROKER))
def test_byte_by_byte_gives_the_same_as_all_at_once(
    sent: list[tuple[AnyCommand, int, list[bytes]]],
) -> None:
    small = [(c, i, [part[:300] for part in payload]) for c, i, payload in sent]
    client, shard = open_pair()
    data = b"".join(b"".join(shard.send(*frame)) for frame in small)
    slow = receive(client, data, [1])
    fast, _ = open_pair()
    fast.receive_data(data)
    at_once: list[Frame] = []
    while (frame := fast.next_event()) is not None:
        at_once.append(frame)

    assert slow == at_once
    assert len(slow) == len(small)


def _samples() -> list[bytes]:
    client, shard = open_pair()
    ranges = [(i * 3, i * 3 + 2) for i in range(20)]
    return [
        b"".join(client.send(commands.Produce(3), 9, [bytes(range(64))])),
        b"".join(client.send(commands.Ack(3, ranges), 1)),
        b"".join(client.send(commands.Subscribe("/d/t", "s", SubscriptionType.SHARED, "c"), 2)),
        b"".join(client.send(commands.CreateTopic("/d/t", TopicSpec()), 3)),
        b"".join(client.send(commands.Fetch("/d/t", AtOffset(5), 1 << 20, 100), 4)),
        b"".join(client.send(commands.Ping(), 5)),
        b"".join(client.send(commands.Stage(1, 3), 7, [bytes(range(64))])),
        b"".join(client.send(commands.Schedule(3, 10**12), 8, [bytes(range(64))])),
        b"".join(client.send(commands.Administer(msgspec.Raw(b"\x81\xa4type\xa1x")), 9)),
        b"".join(shard.send(commands.Produced(7), 6)),
    ]


def crc32c(data: bytes) -> int:
    return google_crc32c.value(data)  # pyright: ignore[reportUnknownVariableType]


def _mutated(rng: random.Random, frame: bytes) -> bytes:
    """One to four damages; then, half of the time, a checksum that vouches for them."""
    raw = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw))
        match rng.randrange(6):
            case 0:
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                raw[at] = rng.choice(
                    b"\x00\x01\x7f\x80\x90\x91\xc0\xc1\xc6\xc9\xd9\xdb\xdd\xdf\xff"
                )
            case 2 if len(raw) > 25:
                at = rng.randrange(24, len(raw))
                raw[at : at + rng.randint(1, 4)] = rng.randbytes(rng.randint(0, 6))
            case 3 if len(raw) > 25:
                del raw[rng.randrange(24, len(raw)) :]
            case 4:
                raw[rng.choice((0, 4, 5, 6, 12, 13))] = rng.randrange(256)
            case _:
                raw[24:25] = rng.randbytes(1)
    if rng.random() < 0.7 and len(raw) > 28:
        meta_bytes = min(struct.unpack_from("<I", raw, 12)[0], len(raw) - 24)
        size = len(raw) if rng.random() < 0.8 else rng.randrange(1 << 12)
        struct.pack_into("<I", raw, 0, max(size - 4, 0))
        struct.pack_into("<I", raw, 12, meta_bytes)
        crc = crc32c(bytes(raw[:16] + raw[24 : 24 + meta_bytes]))
        struct.pack_into("<I", raw, 16, crc)
    return bytes(raw)


@pytest.mark.grows
def test_malformed_frames_raise_only_our_errors() -> None:
    """Every refusal is a leaf with a code and a sentence; whatever is accepted is a typed command."""
    rng = random.Random(0x0D44)
    samples = _samples()
    codes: Counter[int] = Counter()
    outcomes = {"accepted": 0, "waiting": 0, "refused": 0}
    for number in range(MALFORMED_INPUTS):
        data = (
            rng.randbytes(rng.randrange(1, 80))
            if number % 10 == 0
            else _mutated(rng, rng.choice(samples))
        )
        connection = Connection(Role.BROKER) if number % 50 == 1 else open_broker()
        try:
            connection.receive_data(data)
            while (frame := connection.next_event()) is not None:
                assert type(frame.command) is COMMANDS[frame.command.opcode]
                outcomes["accepted"] += 1
            outcomes["waiting"] += 1
            connection.receive_eof()
            connection.next_event()
        except DanubiusError as refusal:
            codes[refusal.code] += 1
            outcomes["refused"] += len(refusal.message) > 10
    assert set(codes) == {103, 104, 105, 501}
    assert outcomes["refused"] == codes.total() > MALFORMED_INPUTS // 2
    assert outcomes["accepted"] > 1000
    assert outcomes["waiting"] > 1000


@given(st.binary(min_size=24, max_size=400))
def test_random_bytes_never_open_a_connection(data: bytes) -> None:
    shard = Connection(Role.BROKER)
    shard.receive_data(data)
    try:
        frame = shard.next_event()
    except DanubiusError:
        frame = None
    assert frame is None
