"""Two peers without a socket: the order of the handshake, frames, refusals, limits, the end."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from danubius.errors import (
    BrokerUnavailable,
    InvariantViolation,
    MessageTooLarge,
    ProtocolViolation,
    UnsupportedVersion,
)
from danubius.model.limits import FRAME_META_BYTES_MAX
from danubius.wire.commands import (
    RANGES_MAX,
    Ack,
    Deliver,
    Done,
    Error,
    Goodbye,
    Hello,
    Lookup,
    Nack,
    Opcode,
    Ping,
    Pong,
    Produce,
    Produced,
    Welcome,
)
from danubius.wire.connection import Connection
from danubius.wire.frame import Frame, encode_head
from danubius.wire.receive_buffer import DIRECT_BYTES_MIN
from danubius.wire.states import ConnectionState, Role
from danubius.wire.version import check_version, choose_version

FRAME_MAX = 1 << 20


def welcome(frame_bytes_max: int = FRAME_MAX) -> Welcome:
    return Welcome(1, "broker", frame_bytes_max, 1 << 19, 30_000)


def open_pair() -> tuple[Connection, Connection]:
    client = Connection(Role.CLIENT, frame_bytes_max=FRAME_MAX)
    broker = Connection(Role.BROKER, frame_bytes_max=FRAME_MAX)
    pass_on(client.send(Hello(1, 1, "test")), broker)
    pass_on(broker.send(welcome()), client)
    return client, broker


def pass_on(buffers: list[bytes | bytearray | memoryview], target: Connection) -> list[Frame]:
    target.receive_data(b"".join(buffers))
    return events(target)


def events(connection: Connection) -> list[Frame]:
    frames: list[Frame] = []
    while (frame := connection.next_event()) is not None:
        frames.append(frame)
    return frames


def feed(connection: Connection, data: bytes) -> list[Frame]:
    """As a socket does: through get_buffer, as much as fits each time."""
    frames: list[Frame] = []
    rest = memoryview(data)
    while rest:
        window = connection.get_buffer(-1)
        assert len(window) > 0
        count = min(len(window), len(rest))
        window[:count] = rest[:count]
        connection.buffer_updated(count)
        frames += events(connection)
        rest = rest[count:]
    return frames


def patched(frame: bytes, at: int, value: bytes, *, seal: bool = True) -> bytes:
    """A frame with some bytes replaced and, if sealed, a checksum that agrees with them."""
    raw = bytearray(frame)
    raw[at : at + len(value)] = value
    if seal:
        meta_bytes = struct.unpack_from("<I", raw, 12)[0]
        crc: int = google_crc32c.value(  # pyright: ignore[reportUnknownVariableType]
            bytes(raw[:16] + raw[24 : 24 + meta_bytes])
        )
        struct.pack_into("<I", raw, 16, crc)
    return bytes(raw)


class TestHandshake:
    def test_hello_and_welcome_open_both_ends(self) -> None:
        client, broker = open_pair()

        assert client.state is ConnectionState.OPEN
        assert broker.state is ConnectionState.OPEN

    def test_client_may_not_speak_before_welcome(self) -> None:
        client = Connection(Role.CLIENT)
        client.send(Hello(1, 1, "test"))

        with pytest.raises(InvariantViolation, match="may not send LOOKUP in the state greeted"):
            client.send(Lookup("/default/a"))

    def test_request_before_hello_is_refused(self) -> None:
        client, _ = open_pair()
        broker = Connection(Role.BROKER)

        with pytest.raises(
            ProtocolViolation, match="client may not send LOOKUP in the state hello"
        ):
            pass_on(client.send(Lookup("/default/a")), broker)

    def test_second_hello_is_refused(self) -> None:
        _, broker = open_pair()

        with pytest.raises(ProtocolViolation, match="may not send HELLO in the state open"):
            pass_on(Connection(Role.CLIENT).send(Hello(1, 1, "again")), broker)

    def test_request_pipelined_behind_hello_is_refused(self) -> None:
        broker = Connection(Role.BROKER)
        client, _ = open_pair()
        broker.receive_data(b"".join(Connection(Role.CLIENT).send(Hello(1, 1, "test"))))
        broker.receive_data(b"".join(client.send(Ping())))
        assert broker.next_event() is not None

        with pytest.raises(ProtocolViolation, match="PING in the state greeted"):
            broker.next_event()

    def test_broker_can_refuse_before_hello(self) -> None:
        client, broker = Connection(Role.CLIENT), Connection(Role.BROKER)
        client.send(Hello(1, 1, "test"))

        (frame,) = pass_on(broker.send(Error(402, "full", 2)), client)

        assert frame.command == Error(402, "full", 2)

    def test_client_refuses_what_only_clients_send(self) -> None:
        client, _ = open_pair()
        other, _ = open_pair()

        with pytest.raises(ProtocolViolation, match="the broker may not send LOOKUP"):
            pass_on(other.send(Lookup("/default/a")), client)

    def test_highest_common_version_is_chosen(self) -> None:
        assert choose_version(Hello(0, 7, "new")) == 2
        assert choose_version(Hello(1, 1, "old")) == 1
        assert check_version(welcome()) == 1

    @pytest.mark.parametrize(("low", "high"), [(3, 4), (0, 0), (3, 1)])
    def test_no_common_version_is_refused(self, low: int, high: int) -> None:
        with pytest.raises(UnsupportedVersion, match="upgrade"):
            choose_version(Hello(low, high, "other"))

    def test_version_the_client_does_not_speak_is_refused(self) -> None:
        with pytest.raises(UnsupportedVersion, match="broker chose protocol version 9"):
            check_version(Welcome(9, "b", 1, 1, 1))

    def test_large_frame_before_welcome_is_refused(self) -> None:
        broker = Connection(Role.BROKER)

        with pytest.raises(MessageTooLarge, match="at most 16384"):
            pass_on(Connection(Role.CLIENT).send(Hello(1, 1, "x" * 20_000)), broker)


class TestFrames:
    def test_command_correlation_and_payload_arrive(self) -> None:
        client, broker = open_pair()

        (frame,) = pass_on(client.send(Produce(7), 42, [b"abc", memoryview(b"defgh")]), broker)

        assert frame.command == Produce(7)
        assert frame.correlation_id == 42
        assert frame.payload == b"abcdefgh"

    def test_payload_buffers_are_not_copied_on_send(self) -> None:
        client, _ = open_pair()
        payload = bytearray(100)

        assert client.send(Produce(7), 1, [payload])[1] is payload

    def test_many_frames_in_one_read_arrive_in_order(self) -> None:
        client, broker = open_pair()
        data = b"".join(b"".join(client.send(Produce(i), i, [bytes([i])])) for i in range(200))

        frames = feed(broker, data)

        assert [frame.correlation_id for frame in frames] == list(range(200))
        assert [frame.payload[0] for frame in frames] == list(range(200))

    @pytest.mark.parametrize(
        "size", [8, DIRECT_BYTES_MIN - 8, DIRECT_BYTES_MIN, 3 * DIRECT_BYTES_MIN, 1 << 19]
    )
    def test_each_payload_has_writable_memory_of_its_own(self, size: int) -> None:
        client, broker = open_pair()
        data = b"".join(client.send(Produce(1), 1, [b"a" * size]))

        first, second = feed(broker, data + data)
        first.payload[:] = b"b" * size

        assert second.payload == b"a" * size
        assert len(first.payload) == size

    def test_large_payload_is_read_into_its_own_memory(self) -> None:
        client, broker = open_pair()
        size = 4 * DIRECT_BYTES_MIN
        head, payload = client.send(Produce(1), 1, [bytes(size)])
        feed(broker, bytes(head))

        window = broker.get_buffer(-1)
        assert size <= len(window) < size + 1024
        window[:size] = payload
        window[0] = 7
        broker.buffer_updated(size)
        (frame,) = events(broker)
        window[1] = 8

        assert (frame.payload[0], frame.payload[1]) == (7, 8)

    def test_header_that_comes_along_with_a_large_payload_is_kept(self) -> None:
        client, broker = open_pair()
        big = b"".join(client.send(Produce(1), 1, [b"x" * (2 * DIRECT_BYTES_MIN)]))
        small = b"".join(client.send(Ping(), 2))

        frames = feed(broker, (big + small) * 5)

        assert [frame.correlation_id for frame in frames] == [1, 2] * 5

    def test_payload_stays_valid_after_later_reads(self) -> None:
        client, broker = open_pair()
        (frame,) = pass_on(client.send(Produce(1), 1, [b"keep me "]), broker)

        feed(broker, b"".join(client.send(Produce(1), 2, [b"y" * 5000])) * 20)

        assert frame.payload == b"keep me "

    def test_large_command_fits(self) -> None:
        client, broker = open_pair()
        ranges = [(2**62 + 2 * i, 2**62 + 2 * i + 1) for i in range(RANGES_MAX)]

        frames = feed(broker, b"".join(client.send(Ack(1, ranges), 5)))

        assert frames[0].command == Ack(1, ranges)


class TestRefusals:
    @pytest.mark.parametrize(
        ("at", "value", "error", "words"),
        [
            (20, b"XXXX", ProtocolViolation, "frame boundary is lost"),
            (23, b"\x02", UnsupportedVersion, "layout version 2"),
            (0, struct.pack("<I", FRAME_MAX), MessageTooLarge, "at most 1048576"),
            (0, struct.pack("<I", 0xFFFF_FFFF), MessageTooLarge, "4294967299 bytes"),
            (0, struct.pack("<I", 19), ProtocolViolation, "header alone has 24"),
            (0, struct.pack("<I", 0), ProtocolViolation, "header alone has 24"),
            (5, b"\x01", ProtocolViolation, "unknown flags 0x1"),
            (6, b"\x00\x01", ProtocolViolation, "reserved bits 0x100"),
            (4, b"\x00", ProtocolViolation, "unknown opcode 0"),
            (4, b"\xff", ProtocolViolation, "unknown opcode 255"),
            (4, bytes([Opcode.PRODUCED]), ProtocolViolation, "client may not send PRODUCED"),
            (12, struct.pack("<I", 9), ProtocolViolation, "cannot hold"),
            (
                12,
                struct.pack("<I", FRAME_META_BYTES_MAX + 1),
                MessageTooLarge,
                "announces a command",
            ),
            (24, b"\x92", ProtocolViolation, "malformed"),
            (24, b"\xc1", ProtocolViolation, "malformed"),
            (24, b"\x91\xa1", ProtocolViolation, "malformed"),
            (24, b"\x91\xff", ProtocolViolation, "malformed"),
        ],
    )
    def test_malformed_header_or_command_is_refused_with_its_reason(
        self, at: int, value: bytes, error: type[Exception], words: str
    ) -> None:
        client, broker = open_pair()
        frame = b"".join(client.send(Produce(5), 1))
        assert len(frame) == 32

        seal = at != 12
        with pytest.raises(error, match=words):
            pass_on([patched(frame, at, value, seal=seal)], broker)

    def test_nothing_is_set_aside_for_a_payload_whose_header_is_false(self) -> None:
        client, broker = open_pair()
        frame = b"".join(client.send(Produce(1), 1, [bytes(1 << 19)]))
        lying = patched(frame, 8, b"\x09", seal=False)

        with pytest.raises(ProtocolViolation, match="checksum"):
            feed(broker, lying[:32])

    @pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 24, 25])
    def test_flipped_bit_is_noticed(self, at: int) -> None:
        client, broker = open_pair()
        frame = bytearray(b"".join(client.send(Produce(5), 1, [bytes(8)])))
        frame[at] ^= 1

        with pytest.raises((ProtocolViolation, MessageTooLarge)):
            pass_on([frame, b"".join(client.send(Ping()))], broker)

    def test_payload_behind_a_command_that_takes_none_is_refused(self) -> None:
        _, broker = open_pair()
        frame = encode_head(Opcode.PING, 0, b"\x90", 8) + bytes(8)

        with pytest.raises(ProtocolViolation, match="PING frame carries 8 bytes"):
            pass_on([frame], broker)

    def test_text_that_is_not_utf8_is_refused(self) -> None:
        _, broker = open_pair()
        frame = encode_head(Opcode.LOOKUP, 0, b"\x91\xa2\xff\xfe", 0)

        with pytest.raises(ProtocolViolation, match="LOOKUP frame is malformed"):
            pass_on([frame], broker)

    @pytest.mark.parametrize("command", [Ack(1, [(-1, 5)]), Nack(-1, []), Ack(1, [(0, 2**63)])])
    def test_integer_out_of_range_is_refused(self, command: Ack | Nack) -> None:
        client, broker = open_pair()

        with pytest.raises(ProtocolViolation, match="malformed"):
            pass_on(client.send(command), broker)

    @pytest.mark.parametrize(
        "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", b"SSH-2.0-OpenSSH", b"\x00" * 4]
    )
    def test_stranger_is_recognised_by_its_first_bytes(self, data: bytes) -> None:
        broker = Connection(Role.BROKER)

        with pytest.raises(ProtocolViolation, match="does not speak the Danubius protocol"):
            feed(broker, data)

    def test_stranger_with_a_likely_length_is_recognised_by_the_magic(self) -> None:
        broker = Connection(Role.BROKER)

        with pytest.raises(ProtocolViolation, match="does not speak the Danubius protocol"):
            feed(broker, struct.pack("<I", 100) + bytes(20))

    def test_refusal_is_final_and_the_broker_can_still_say_why(self) -> None:
        client, broker = open_pair()
        with pytest.raises(ProtocolViolation):
            pass_on([b"\xff" * 24], broker)

        assert broker.state is ConnectionState.CLOSING
        window = broker.get_buffer(-1)
        window[:10] = bytes(10)
        broker.buffer_updated(10)
        broker.receive_data(b"".join(client.send(Ping())))
        with pytest.raises(ProtocolViolation):
            broker.next_event()
        (frame,) = pass_on(broker.send(Error(105, "why", 0)), client)
        assert frame.command == Error(105, "why", 0)


class TestSending:
    def test_frame_above_the_limit_is_not_sent(self) -> None:
        client, _ = open_pair()

        with pytest.raises(MessageTooLarge, match="PRODUCE frame of 1048608 bytes"):
            client.send(Produce(1), 1, [bytes(FRAME_MAX)])
        client.send(Ping())

    def test_limit_of_the_broker_holds_for_the_client(self) -> None:
        client = Connection(Role.CLIENT)
        client.send(Hello(1, 1, "test"))
        broker = Connection(Role.BROKER)
        pass_on(Connection(Role.CLIENT).send(Hello(1, 1, "test")), broker)
        pass_on(broker.send(welcome(frame_bytes_max=1000)), client)

        with pytest.raises(MessageTooLarge, match="limit of 1000 bytes"):
            client.send(Produce(1), 1, [bytes(1000)])

    def test_command_above_its_limit_is_not_sent(self) -> None:
        client = Connection(Role.CLIENT)

        with pytest.raises(MessageTooLarge, match="command of a HELLO frame"):
            client.send(Hello(1, 1, "x" * FRAME_META_BYTES_MAX))

    def test_payload_for_a_command_without_one_is_a_bug(self) -> None:
        client, _ = open_pair()

        with pytest.raises(InvariantViolation, match="PING takes no payload"):
            client.send(Ping(), 0, [b"x"])

    def test_command_of_the_other_role_is_a_bug(self) -> None:
        client, _ = open_pair()

        with pytest.raises(InvariantViolation, match="the client may not send PRODUCED"):
            client.send(Produced(1))


class TestEnd:
    def test_broker_answers_what_is_under_way_after_the_clients_goodbye(self) -> None:
        client, broker = open_pair()
        pass_on(client.send(Goodbye("done")), broker)

        (frame,) = pass_on(broker.send(Produced(9), 1), client)

        assert frame.command == Produced(9)
        assert client.state is broker.state is ConnectionState.CLOSING

    def test_client_is_silent_after_its_goodbye(self) -> None:
        client, _ = open_pair()
        client.send(Goodbye("done"))

        with pytest.raises(BrokerUnavailable, match="closing: PING was not sent"):
            client.send(Ping())

    def test_client_is_silent_after_the_brokers_goodbye(self) -> None:
        client, broker = open_pair()
        pass_on(broker.send(Goodbye("restart")), client)

        with pytest.raises(BrokerUnavailable):
            client.send(Produce(1))

    def test_client_that_speaks_after_its_goodbye_is_refused(self) -> None:
        client, broker = open_pair()
        ping = client.send(Ping())
        pass_on(client.send(Goodbye("done")), broker)

        with pytest.raises(ProtocolViolation, match="PING in the state closing"):
            pass_on(ping, broker)

    def test_frames_that_cross_the_brokers_goodbye_are_dropped(self) -> None:
        client, broker = open_pair()
        crossing = client.send(Produce(1), 3, [bytes(DIRECT_BYTES_MIN * 2)])
        goodbye = client.send(Goodbye("me too"))
        broker.send(Goodbye("restart"))

        assert feed(broker, b"".join(crossing)) == []
        assert [frame.command for frame in pass_on(goodbye, broker)] == [Goodbye("me too")]

    def test_broker_may_still_answer_after_its_own_goodbye(self) -> None:
        client, broker = open_pair()
        frames = pass_on(broker.send(Goodbye("restart")), client)
        frames += pass_on(broker.send(Done(), 4), client)

        assert [frame.command for frame in frames] == [Goodbye("restart"), Done()]

    def test_end_between_frames_is_orderly(self) -> None:
        client, broker = open_pair()
        pass_on(client.send(Ping()), broker)
        broker.receive_eof()

        assert broker.next_event() is None
        assert broker.state is ConnectionState.CLOSED
        with pytest.raises(BrokerUnavailable, match="closed: PONG was not sent"):
            broker.send(Pong())

    def test_complete_frames_before_the_end_are_still_given(self) -> None:
        client, broker = open_pair()
        data = b"".join(client.send(Ping(), 1))
        broker.receive_data(data + data + data[:5])
        broker.receive_eof()

        assert broker.next_event() is not None
        assert broker.next_event() is not None
        with pytest.raises(BrokerUnavailable, match="middle of a frame, of which 5 bytes came"):
            broker.next_event()

    def test_end_inside_a_large_payload_is_reported(self) -> None:
        client, broker = open_pair()
        data = b"".join(client.send(Produce(1), 1, [bytes(DIRECT_BYTES_MIN)]))
        feed(broker, data[:-1])
        broker.receive_eof()

        with pytest.raises(BrokerUnavailable, match="65535 of 65536 payload bytes came"):
            broker.next_event()

    def test_goodbye_before_the_end_leaves_the_connection_closed(self) -> None:
        client, broker = open_pair()
        broker.receive_data(b"".join(client.send(Goodbye("done"))))
        broker.receive_eof()

        assert broker.next_event() is not None
        assert broker.state is ConnectionState.CLOSED


def test_deliver_with_many_batches_is_one_frame() -> None:
    client, broker = open_pair()
    batches = [bytes([i]) * 8 for i in range(100)]

    (frame,) = pass_on(broker.send(Deliver(1, 0, 100, 100), 0, batches), client)

    assert frame.payload == b"".join(batches)
