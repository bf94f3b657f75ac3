"""Peers of version 1 and this build: their frames mean what they meant, ours are such as they can read."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from danubius.errors import (
    DanubiusError,
    LedgerDamaged,
    ProtocolViolation,
    Throttled,
    TopicNotFound,
    UnsupportedVersion,
)
from danubius.model.policy import FailurePolicy, Policies
from danubius.model.subscription import AtEarliest, AtOffset, AtTime, SubscriptionType
from danubius.model.topic import Dispatch, Durability, Retention, TopicSpec
from danubius.wire.codec import COMMANDS, decode_command, encode_command
from danubius.wire.commands import (
    AbortStages,
    AbortTransaction,
    Access,
    Ack,
    Administer,
    Administered,
    BeginTransaction,
    CloseConsumer,
    CloseProducer,
    CommitStages,
    CommitTransaction,
    ConsumerActive,
    ConsumerClosed,
    CreateTopic,
    DeleteTopic,
    Deliver,
    DescribeTopic,
    Done,
    Error,
    Fetch,
    Fetched,
    Flow,
    Goodbye,
    Hello,
    ListTopics,
    Located,
    Lookup,
    Nack,
    OffsetResolved,
    OpenProducer,
    OpenStage,
    Ping,
    Pong,
    Produce,
    Produced,
    ProducerClosed,
    ProducerOpened,
    ResolveOffset,
    Schedule,
    Stage,
    StageAck,
    StageOpened,
    Subscribe,
    Subscribed,
    SubscriptionSummary,
    TopicChanged,
    TopicDescribed,
    TopicsListed,
    TopicSummary,
    TransactionBegun,
    Upload,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.frame import Frame, encode_head
from danubius.wire.states import ConnectionState, Role
from danubius.wire.version import (
    COMMANDS_SINCE,
    FIELDS_SINCE,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    check_fields,
    check_version,
    choose_version,
)

if TYPE_CHECKING:
    from danubius.wire.commands import AnyCommand

SPEC = TopicSpec(Dispatch.NON_RELIABLE, Durability.WRITTEN, Retention(60_000, None))
PLAIN = TopicSpec(Dispatch.RELIABLE, Durability.SYNCED, Retention())
SUMMARY = TopicSummary("/d/t", PLAIN, 1, 9, 100, 1, 2)
SUBSCRIPTION = SubscriptionSummary("s", SubscriptionType.SHARED, ["c"], 1, 2, 3, 4)

SPEC_HEX = (
    "83a86469737061746368ac6e6f6e2d72656c6961626c65aa6475726162696c697479a77772697474656e"
    "a9726574656e74696f6e82a66167655f6d73cdea60aa73697a655f6279746573c0"
)
PLAIN_HEX = (
    "83a86469737061746368a872656c6961626c65aa6475726162696c697479a673796e636564"
    "a9726574656e74696f6e82a66167655f6d73ce240c8400aa73697a655f6279746573c0"
)
SUMMARY_HEX = f"97a42f642f74{PLAIN_HEX}0109640102"

FROM_VERSION_1: list[tuple[AnyCommand, str]] = [
    (Hello(1, 1, "c"), "930101a163"),
    (Welcome(1, "b", 17_825_856, 8_388_608, 30_000), "9501a162ce01100040ce00800000cd7530"),
    (Ping(), "90"),
    (Pong(), "90"),
    (Error(204, "no", 1), "93cccca26e6f01"),
    (Error(601, "bad", 0, 51, 3, 10, 20), "97cd0259a36261640033030a14"),
    (Done(), "90"),
    (Goodbye("end"), "91a3656e64"),
    (Lookup("/d/t"), "91a42f642f74"),
    (Located("/d/t", "danubius://h:1"), "92a42f642f74ae64616e75626975733a2f2f683a31"),
    (CreateTopic("/d/t", SPEC, True), f"93a42f642f74{SPEC_HEX}c3"),
    (CreateTopic("/d/t", PLAIN), f"93a42f642f74{PLAIN_HEX}c2"),
    (DeleteTopic("/d/t"), "91a42f642f74"),
    (ListTopics("d", "/d/a", 5), "93a164a42f642f6105"),
    (TopicsListed([SUMMARY], True), f"9291{SUMMARY_HEX}c3"),
    (DescribeTopic("/d/t"), "91a42f642f74"),
    (
        TopicDescribed(SUMMARY, 3, [SUBSCRIPTION], ["p"]),
        f"94{SUMMARY_HEX}039197a173a673686172656491a1630102030491a170",
    ),
    (ResolveOffset("/d/t", AtTime(7)), "92a42f642f7482a474797065a474696d65a774696d655f757307"),
    (OffsetResolved(5, 1, 9), "93050109"),
    (OpenProducer("/d/t", "p", SPEC, 4), f"94a42f642f74a170{SPEC_HEX}04"),
    (ProducerOpened(1, 2**63, 3, 4), "9401cf80000000000000000304"),
    (Produce(7), "9107"),
    (Produced(300), "91cd012c"),
    (CloseProducer(7), "9107"),
    (ProducerClosed(7, 306, "gone"), "9307cd0132a4676f6e65"),
    (
        Subscribe("/d/t", "s", SubscriptionType.KEY_SHARED, "c", AtOffset(5), 1000, True),
        "97a42f642f74a173aa6b65792d736861726564a16382a474797065a66f6666736574a66f666673657405cd03e8c3",
    ),
    (
        Subscribe("/d/t", "s", SubscriptionType.EXCLUSIVE, "c"),
        "97a42f642f74a173a96578636c7573697665a16381a474797065a66c617465737400c2",
    ),
    (Subscribed(1, True), "9201c3"),
    (Flow(1, 1000, 65_536), "9301cd03e8ce00010000"),
    (Deliver(1, 10, 20, 10, 2), "95010a140a02"),
    (Ack(1, [(0, 10), (12, 13)]), "92019292000a920c0d"),
    (Nack(1, [(0, 10)], 500), "93019192000acd01f4"),
    (CloseConsumer(1), "9101"),
    (ConsumerClosed(1, 307, "replaced"), "9301cd0133a87265706c61636564"),
    (ConsumerActive(1, False), "9201c2"),
    (
        Fetch("/d/t", AtEarliest(), 1_048_576, 100, True),
        "95a42f642f7481a474797065a86561726c69657374ce0010000064c3",
    ),
    (Fetched(5, 9, 0, 9), "9405090009"),
]
"""What a peer of version 1 sends, byte for byte, and what it means."""

HOT = (Produce, Produced, Deliver, Ack, Flow)

RAW = msgspec.Raw(b"\x81\xa7request\xa1x")
NEW_COMMANDS: dict[Role, list[AnyCommand]] = {
    Role.CLIENT: [
        Administer(RAW),
        Stage(1, 2),
        Schedule(2, 3),
        StageAck(1, 2, [(0, 1)]),
        BeginTransaction(1000),
        CommitTransaction(1),
        AbortTransaction(1),
        OpenStage("job", 0, "task"),
        Upload(1, 0, "/d/t"),
        CommitStages("job", 0, []),
        AbortStages("job", 0, []),
    ],
    Role.BROKER: [
        TopicChanged("/d/t", 4),
        Administered(RAW),
        TransactionBegun(1),
        StageOpened(1, 0),
    ],
}
SUBSCRIBE = Subscribe("/d/t", "s", SubscriptionType.KEY_SHARED, "c")
OPEN = OpenProducer("/d/t", "p", SPEC)
NEW_WISHES: list[AnyCommand] = [
    CreateTopic("/d/t", SPEC, partitions=4),
    CreateTopic("/d/t", TopicSpec(policies=Policies(ttl_ms=1000))),
    OpenProducer("/d/t", "p", TopicSpec(policies=Policies(ttl_ms=1000))),
    msgspec.structs.replace(OPEN, access=Access.EXCLUSIVE),
    msgspec.structs.replace(OPEN, keep_sequence=True),
    msgspec.structs.replace(OPEN, is_delayed=True),
    msgspec.structs.replace(SUBSCRIBE, key_filters=("eu-*",)),
    msgspec.structs.replace(SUBSCRIBE, failure=FailurePolicy()),
]


def name_of(value: Any) -> str:
    return type(value).__name__ if isinstance(value, msgspec.Struct) else ""


def shake_hands(hello: Hello, welcome: Welcome) -> dict[Role, Connection]:
    client, broker = Connection(Role.CLIENT), Connection(Role.BROKER)
    broker.receive_data(b"".join(client.send(hello)))
    assert broker.next_event() is not None
    client.receive_data(b"".join(broker.send(welcome)))
    assert client.next_event() is not None
    return {Role.CLIENT: client, Role.BROKER: broker}


def pair(version: int) -> dict[Role, Connection]:
    return shake_hands(Hello(1, version, "c"), Welcome(version, "b", 1 << 20, 1 << 19, 30_000))


def pass_on(ends: dict[Role, Connection], sender: Role, command: AnyCommand) -> Frame:
    receiver = ends[sender.peer]
    receiver.receive_data(b"".join(ends[sender].send(command)))
    frame = receiver.next_event()
    assert frame is not None
    return frame


class TestBytes:
    def test_every_command_of_version_1_is_here(self) -> None:
        assert {type(command) for command, _ in FROM_VERSION_1} == {
            command for opcode, command in COMMANDS.items() if opcode not in COMMANDS_SINCE
        }

    @pytest.mark.parametrize(("command", "sent"), FROM_VERSION_1, ids=name_of)
    def test_old_frame_means_what_it_meant(self, command: AnyCommand, sent: str) -> None:
        assert decode_command(command.opcode, bytes.fromhex(sent)) == command

    @pytest.mark.parametrize(("command", "sent"), FROM_VERSION_1, ids=name_of)
    def test_fields_of_version_1_stay_in_their_places(self, command: AnyCommand, sent: str) -> None:
        old: list[object] = msgspec.msgpack.decode(bytes.fromhex(sent))
        new: list[object] = msgspec.msgpack.decode(encode_command(command))
        for before, now in zip(old, new[: len(old)], strict=True):
            if not _mentions_spec(before):
                assert now == before

    @pytest.mark.parametrize(
        ("command", "sent"), [row for row in FROM_VERSION_1 if isinstance(row[0], HOT)], ids=name_of
    )
    def test_hot_commands_are_sent_as_ever(self, command: AnyCommand, sent: str) -> None:
        assert encode_command(command).hex() == sent


def _mentions_spec(value: object) -> bool:
    """A spec is a map, of which keys may come and go; what an old one means is tested above."""
    return "dispatch" in str(value)


class TestHandshake:
    def test_old_client_and_this_broker_agree_on_version_1(self) -> None:
        hello = Hello(1, 1, "old")
        ends = shake_hands(hello, Welcome(choose_version(hello), "b", 1 << 20, 1 << 19, 30_000))

        assert [ends[role].version for role in Role] == [1, 1]
        assert ends[Role.BROKER].state is ConnectionState.OPEN
        assert pass_on(ends, Role.CLIENT, Lookup("/d/t")).command == Lookup("/d/t")

    def test_this_client_and_an_old_broker_agree_on_version_1(self) -> None:
        welcome = Welcome(1, "old", 1 << 20, 1 << 19, 30_000)
        ends = shake_hands(Hello(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, "c"), welcome)

        assert check_version(welcome) == 1
        assert ends[Role.CLIENT].version == 1
        assert pass_on(ends, Role.CLIENT, OPEN).command == OPEN
        assert pass_on(ends, Role.CLIENT, SUBSCRIBE).command == SUBSCRIBE

    def test_two_of_this_build_agree_on_version_2(self) -> None:
        hello = Hello(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, "c")
        ends = shake_hands(hello, Welcome(choose_version(hello), "b", 1 << 20, 1 << 19, 30_000))

        assert [ends[role].version for role in Role] == [2, 2]

    def test_version_beyond_ours_leaves_the_client_able_to_part(self) -> None:
        ends = shake_hands(Hello(1, 2, "c"), Welcome(2, "b", 1 << 20, 1 << 19, 30_000))
        client = Connection(Role.CLIENT)
        client.send(Hello(1, 9, "c"))
        client.receive_data(
            encode_head(2, 0, encode_command(Welcome(9, "b", 1 << 20, 1 << 19, 1)), 0)
        )

        assert client.next_event() is not None
        goodbye = client.send(Goodbye("no common version"))
        ends[Role.BROKER].receive_data(b"".join(goodbye))
        assert ends[Role.BROKER].next_event() is not None


class TestOldPeer:
    def test_lists_of_new_things_are_complete(self) -> None:
        commands = {type(command).opcode for role in Role for command in NEW_COMMANDS[role]}
        assert commands == set(COMMANDS_SINCE)
        assert len(NEW_WISHES) == sum(map(len, FIELDS_SINCE.values()))
        for command in NEW_WISHES:
            (changed,) = (
                field.path
                for field in FIELDS_SINCE[type(command)]
                if attrgetter(field.path)(command) != field.default
            )
            with pytest.raises(UnsupportedVersion, match=re.escape(f".{changed} needs")):
                check_fields(command, 1)

    def test_what_an_old_peer_takes_a_new_field_for_is_what_it_is_by_default(self) -> None:
        for command in (CreateTopic("/d/t", TopicSpec()), OPEN, SUBSCRIBE):
            for field in FIELDS_SINCE[type(command)]:
                assert attrgetter(field.path)(command) == field.default

    def test_spec_without_wishes_is_one_that_it_can_read(self) -> None:
        """Its `retention` is not nil-able: what is inherited must be left out."""
        sent: list[dict[str, object]] = msgspec.msgpack.decode(
            encode_command(CreateTopic("/d/t", TopicSpec()))
        )
        assert sent[1] == {}

    @pytest.mark.parametrize("role", Role)
    def test_new_command_is_not_sent_to_it(self, role: Role) -> None:
        ends = pair(1)
        for command in NEW_COMMANDS[role]:
            with pytest.raises(
                UnsupportedVersion, match=f"{command.opcode.name} needs protocol version 2"
            ):
                ends[role].send(command)
        assert pass_on(ends, role, Ping()).command == Ping()

    @pytest.mark.parametrize("role", Role)
    def test_new_command_of_it_is_refused(self, role: Role) -> None:
        for command in NEW_COMMANDS[role]:
            frame = encode_head(command.opcode, 1, encode_command(command), 0)
            receiver = pair(1)[role.peer]
            receiver.receive_data(frame)
            with pytest.raises(ProtocolViolation, match=f"may not send {command.opcode.name}: it"):
                receiver.next_event()

    @pytest.mark.parametrize("command", NEW_WISHES, ids=name_of)
    def test_wish_that_it_would_pass_over_is_not_sent(self, command: AnyCommand) -> None:
        ends = pair(1)
        with pytest.raises(
            UnsupportedVersion, match=rf"{type(command).__name__}\.[\w.]+ needs protocol version 2"
        ):
            ends[Role.CLIENT].send(command)
        assert pass_on(pair(2), Role.CLIENT, command).command == command

    def test_fields_that_only_add_are_sent(self) -> None:
        ends = pair(1)
        for role, command in (
            (Role.CLIENT, Nack(1, [(0, 1)], 0, "bad data")),
            (Role.BROKER, Located("/d/t", "danubius://h:1", 4)),
            (Role.BROKER, Error(404, "too fast", 2, wait_ms=50)),
        ):
            assert pass_on(ends, role, command).command == command


@pytest.mark.parametrize("role", Role)
def test_new_commands_pass_between_peers_of_version_2(role: Role) -> None:
    ends = pair(2)
    for command in NEW_COMMANDS[role]:
        assert pass_on(ends, role, command).command == command


@pytest.mark.parametrize("command", [Stage(1, 2, 5), Schedule(2, 3)])
def test_staged_and_scheduled_batches_travel_behind_their_command(command: AnyCommand) -> None:
    ends = pair(2)
    broker = ends[Role.BROKER]
    broker.receive_data(b"".join(ends[Role.CLIENT].send(command, 7, [b"a batch."])))
    frame = broker.next_event()

    assert frame is not None
    assert (frame.command, frame.payload) == (command, b"a batch.")


def test_request_of_an_operator_travels_unread() -> None:
    """Whatever is inside: the broker answers what it cannot make sense of, and the connection lives on."""
    for inside in (b"\x81\xa7request\xa7unknown", b"\xc0", b"\x93\x01\x02\x03", b"\xa2\xff\xfe"):
        frame = pass_on(pair(2), Role.CLIENT, Administer(msgspec.Raw(inside)))
        assert isinstance(frame.command, Administer)
        assert bytes(frame.command.request) == inside


@pytest.mark.parametrize(
    "error",
    [
        TopicNotFound("no /d/t"),
        LedgerDamaged("bad", 10, 20),
        Throttled("too fast", wait_ms=250),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_arrives_with_all_that_it_carries(error: DanubiusError) -> None:
    frame = pass_on(pair(2), Role.BROKER, Error.of(error, about=51, handle=3))

    assert isinstance(frame.command, Error)
    assert (frame.command.about, frame.command.handle) == (51, 3)
    assert frame.command.retry == error.retry
    told = frame.command.as_exception()
    assert type(told) is type(error)
    assert vars(told) == vars(error)


def test_throttling_of_an_old_broker_names_no_wait() -> None:
    told = Error(404, "too fast", 2).as_exception()

    assert isinstance(told, Throttled)
    assert told.wait_ms == 0
