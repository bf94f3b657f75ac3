"""One end of a connection, without the socket: bytes in, frames out; commands in, bytes out.

    connection.receive_data(data)               # or get_buffer() and buffer_updated(count)
    while (frame := connection.next_event()) is not None: ...
    transport.writelines(connection.send(command, correlation_id, payload))

Invariants: any cutting of the same bytes gives the same frames; a frame is refused as soon as the bytes that
condemn it are there, and before memory is set aside for its payload; after one refusal nothing more is
received, while the broker can still say why. Only DanubiusError leaves come out of the receiving side. What the
handshake says is the caller's business; its order is enforced here, and that nothing passes in either direction which
the version of its Welcome does not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from danubius.errors import (
    BrokerUnavailable,
    DanubiusError,
    InvariantViolation,
    MessageTooLarge,
    ProtocolViolation,
    UnsupportedVersion,
)
from danubius.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX
from danubius.wire.codec import COMMANDS, decode_command, encode_command
from danubius.wire.commands import AnyCommand, Goodbye, Hello, Opcode, Welcome
from danubius.wire.frame import (
    EMPTY,
    HEADER,
    HEADER_BYTES,
    HELLO_FRAME_BYTES_MAX,
    LENGTH_BYTES,
    MAGIC,
    PAYLOAD_OPCODES,
    PROTECTED_BYTES,
    Frame,
    aligned,
    checksum,
    encode_head,
)
from danubius.wire.receive_buffer import DIRECT_BYTES_MIN, ReceiveBuffer
from danubius.wire.states import LEGAL, ConnectionState, Role
from danubius.wire.version import (
    COMMANDS_SINCE,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    check_fields,
    has_new_fields,
    is_known,
    needs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from danubius.model.buffers import Buffer

_MAGIC_WORD_MASK: Final = 0x00FF_FFFF
_TURNING: Final = frozenset({Opcode.HELLO, Opcode.WELCOME, Opcode.GOODBYE})
"""The commands that change the state."""
_TURNING_COMMANDS: Final = frozenset(COMMANDS[opcode] for opcode in _TURNING)

_VERSIONS: Final = range(PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX + 1)
_SENDABLE: Final[Mapping[tuple[int, Role, ConnectionState], Mapping[type[AnyCommand], int]]] = {
    (version, role, state): {
        COMMANDS[opcode]: int(opcode)
        for opcode in LEGAL[state][role]
        if is_known(opcode, version) and not has_new_fields(COMMANDS[opcode], version)
    }
    for version in _VERSIONS
    for state in ConnectionState
    for role in Role
}
"""What is sent without a second look: of every version, what it has and understands whole."""
_RECEIVABLE: Final[Mapping[tuple[int, Role, ConnectionState], frozenset[int]]] = {
    (version, role, state): frozenset(
        int(opcode) for opcode in LEGAL[state][role.peer] if is_known(opcode, version)
    )
    for version in _VERSIONS
    for state in ConnectionState
    for role in Role
}


class Connection:
    """The protocol of one connection, seen from one end."""

    __slots__ = (
        "_discards",
        "_ended",
        "_failure",
        "_inbox",
        "_large_frames",
        "_pending",
        "_receivable",
        "_receive_bytes_max",
        "_role",
        "_send_bytes_max",
        "_sendable",
        "frame_bytes_max",
        "large_frame",
        "large_frame_bytes",
        "state",
        "version",
    )

    def __init__(self, role: Role, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.version = PROTOCOL_VERSION_MIN
        """Of the protocol, as Welcome says; the lowest one before."""
        self._role = role
        self._inbox = ReceiveBuffer()
        self._pending: tuple[AnyCommand, int] | None = None
        self._large_frames = 0
        self.large_frame = 0
        """The number of the large frame that has begun to come, among all of this connection; 0: there is none."""
        self.large_frame_bytes = 0
        """What it takes when it is complete."""
        self._failure: DanubiusError | None = None
        self._ended = False
        self._discards = False
        self._receive_bytes_max = min(HELLO_FRAME_BYTES_MAX, frame_bytes_max)
        self._send_bytes_max = frame_bytes_max
        self._enter(ConnectionState.HELLO)

    @property
    def role(self) -> Role:
        return self._role

    # ------------------------------------------------------------ receiving

    def get_buffer(self, size_hint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """Memory for the next bytes from the socket; never empty."""
        return self._inbox.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were read into the memory offered last. Call next_event until it returns None."""
        self._inbox.updated(count)
        if self._failure is not None:
            self._inbox.discard()

    def receive_data(self, data: Buffer) -> None:
        """Take bytes by copying them."""
        if self._failure is None:
            self._inbox.append(data)

    def receive_eof(self) -> None:
        """The peer's bytes have ended. Frames that are complete can still be taken."""
        self._ended = True
        self._enter(ConnectionState.CLOSED)

    def discard(self) -> None:
        """The connection is gone, and with it what was not taken: give the memory back."""
        self._pending = None
        self.large_frame = 0
        self._inbox.discard()

    def next_event(self) -> Frame | None:
        """The next complete frame, or None if more bytes are needed.

        Raises:
            ProtocolViolation: the peer sent what the protocol does not allow here.
            UnsupportedVersion: the peer's frames are of another version.
            MessageTooLarge: the peer announced a frame above the limit.
            BrokerUnavailable: the bytes ended in the middle of a frame.
        """
        if self._failure is not None:
            raise self._failure
        inbox = self._inbox
        if inbox.start == inbox.end and self._pending is None:
            return None
        try:
            while True:
                frame = self._parse() if self._pending is None else self._finish_direct()
                if frame is None:
                    if self._ended and not self._inbox.is_empty:
                        self._refuse_truncated()
                    return None
                if type(frame[0]) in _TURNING_COMMANDS:
                    self._turn_received(frame.command)
                elif self._discards:
                    continue
                return frame
        except DanubiusError as failure:
            self._failure = failure
            self.discard()
            if self.state is not ConnectionState.CLOSED:
                self._enter(ConnectionState.CLOSING)
            raise

    def _parse(self) -> Frame | None:
        inbox = self._inbox
        start = inbox.start
        available = inbox.end - start
        if available < HEADER_BYTES:
            if available >= LENGTH_BYTES:
                self._check_length_early(inbox.view, start)
            return None
        header = HEADER.unpack_from(inbox.view, start)
        length, opcode, flags, reserved, correlation_id, meta_bytes, crc, magic = header
        total = length + LENGTH_BYTES
        head_bytes = HEADER_BYTES + meta_bytes
        payload_at = (head_bytes + 7) & ~7
        if (
            magic != MAGIC
            or total > self._receive_bytes_max
            or flags
            or reserved
            or opcode not in self._receivable
            or meta_bytes > FRAME_META_BYTES_MAX
            or total < payload_at
            or (total > payload_at and opcode not in PAYLOAD_OPCODES)
        ):
            self._refuse_header(header)
        if available < payload_at:
            inbox.reserve(payload_at)
            return None
        view = inbox.view
        meta = bytes(view[start + HEADER_BYTES : start + head_bytes])
        if checksum(bytes(view[start : start + PROTECTED_BYTES]), meta) != crc:
            raise ProtocolViolation(
                f"the checksum of a {Opcode(opcode).name} frame does not match: header or command was damaged"
            )
        if available < total and total - payload_at < DIRECT_BYTES_MIN:
            inbox.reserve(total)
            return None
        command = decode_command(opcode, meta)
        # Header and command are good: consume the frame, or begin to.
        if available < total:
            self._pending = command, correlation_id
            inbox.begin_direct(start + payload_at, total - payload_at)
            self._large_frames += 1
            self.large_frame = self._large_frames
            self.large_frame_bytes = total
            return None
        inbox.start = start + total
        if total == payload_at:
            return Frame(command, correlation_id, EMPTY)
        payload = bytearray(view[start + payload_at : start + total])
        return Frame(command, correlation_id, memoryview(payload))

    def _finish_direct(self) -> Frame | None:
        payload = self._inbox.take_direct()
        if payload is None:
            return None
        assert self._pending is not None
        command, correlation_id = self._pending
        self._pending = None
        self.large_frame = 0
        return Frame(command, correlation_id, payload)

    def _turn_received(self, command: AnyCommand) -> None:
        if self._ended:
            return
        if isinstance(command, Hello):
            self._enter(ConnectionState.GREETED)
        elif isinstance(command, Welcome):
            self._send_bytes_max = min(self.frame_bytes_max, command.frame_bytes_max)
            self._open(command)
        else:
            self._discards = False
            self._enter(ConnectionState.CLOSING)

    # ------------------------------------------------------------ sending

    def send(
        self, command: AnyCommand, correlation_id: int = 0, payload: Sequence[Buffer] = ()
    ) -> list[Buffer]:
        """The buffers to write, in order: header and command, then the payload's own buffers, uncopied.

        Raises:
            BrokerUnavailable: the connection is closing or closed.
            MessageTooLarge: the frame would be above what the peer accepts; nothing was sent.
            UnsupportedVersion: the peer is too old for this; nothing was sent.
        """
        opcode = self._sendable.get(type(command))
        if opcode is None:
            opcode = self._look_twice(command)
        payload_bytes = sum(map(len, payload)) if payload else 0
        meta = encode_command(command)
        head = encode_head(opcode, correlation_id, meta, payload_bytes)
        size = len(head) + payload_bytes
        if size > self._send_bytes_max or len(meta) > FRAME_META_BYTES_MAX:
            self._refuse_send_size(opcode, size, len(meta))
        if payload_bytes and opcode not in PAYLOAD_OPCODES:
            raise InvariantViolation(f"{Opcode(opcode).name} takes no payload")
        if opcode in _TURNING:
            self._turn_sent(command)
        return [head, *payload]

    def _turn_sent(self, command: AnyCommand) -> None:
        if isinstance(command, Hello):
            self._enter(ConnectionState.GREETED)
        elif isinstance(command, Welcome):
            self._open(command)
        else:
            assert isinstance(command, Goodbye)
            # What the client had under way when the broker said Goodbye is no violation. It is not read either.
            self._discards = self._role is Role.BROKER and self.state is not ConnectionState.CLOSING
            self._enter(ConnectionState.CLOSING)

    def _open(self, welcome: Welcome) -> None:
        # A client that cannot speak the chosen version ends the connection itself (`check_version`).
        self.version = min(max(welcome.version, PROTOCOL_VERSION_MIN), PROTOCOL_VERSION_MAX)
        self._enter(ConnectionState.OPEN)

    def _enter(self, state: ConnectionState) -> None:
        self.state = state
        if state is ConnectionState.OPEN:
            self._receive_bytes_max = self.frame_bytes_max
        self._sendable = _SENDABLE[self.version, self._role, state]
        if state is ConnectionState.CLOSED:
            return  # what came before the end is still judged as of then
        received_as = ConnectionState.OPEN if self._discards else state
        self._receivable = _RECEIVABLE[self.version, self._role, received_as]

    # ------------------------------------------------------------ refusing

    def _check_length_early(self, view: memoryview, start: int) -> None:
        """Four bytes are enough to tell many a stranger; it may never send the rest of a header."""
        total = int.from_bytes(view[start : start + LENGTH_BYTES], "little") + LENGTH_BYTES
        if HEADER_BYTES <= total <= self._receive_bytes_max:
            return
        if self.state is ConnectionState.HELLO:
            first = bytes(view[start : start + LENGTH_BYTES])
            raise ProtocolViolation(
                f"the peer does not speak the Danubius protocol: its first bytes are {first!r}"
            )
        self._refuse_size(total)

    def _refuse_magic(self, magic: int) -> NoReturn:
        if magic & _MAGIC_WORD_MASK == MAGIC & _MAGIC_WORD_MASK:
            raise UnsupportedVersion(
                f"the peer sends frames of layout version {magic >> 24}, this side knows version {MAGIC >> 24}"
            )
        if self.state is ConnectionState.HELLO:
            raise ProtocolViolation("the peer does not speak the Danubius protocol: no frame magic")
        raise ProtocolViolation("a frame header has no magic: the frame boundary is lost")

    def _refuse_size(self, total: int) -> NoReturn:
        if total < HEADER_BYTES:
            raise ProtocolViolation(
                f"a frame announces {total} bytes, its header alone has {HEADER_BYTES}"
            )
        raise MessageTooLarge(
            f"the peer announces a frame of {total} bytes, at most {self._receive_bytes_max} are accepted here"
        )

    def _refuse_header(self, header: tuple[int, ...]) -> NoReturn:
        """Say what is wrong with a header, most telling first."""
        length, opcode, flags, reserved, _, meta_bytes, _, magic = header
        total = length + LENGTH_BYTES
        if magic != MAGIC:
            self._refuse_magic(magic)
        if total > self._receive_bytes_max or total < HEADER_BYTES:
            self._refuse_size(total)
        if flags or reserved:
            raise ProtocolViolation(
                f"a frame header has unknown flags {flags:#x} or reserved bits {reserved:#x}"
            )
        if opcode not in self._receivable:
            self._refuse_opcode(opcode)
        if meta_bytes > FRAME_META_BYTES_MAX:
            raise MessageTooLarge(
                f"the peer announces a command of {meta_bytes} bytes, at most {FRAME_META_BYTES_MAX} are accepted"
            )
        payload_bytes = total - aligned(HEADER_BYTES + meta_bytes)
        if payload_bytes < 0:
            raise ProtocolViolation(
                f"a frame of {total} bytes cannot hold its header and a command of {meta_bytes} bytes"
            )
        raise ProtocolViolation(
            f"a {Opcode(opcode).name} frame carries {payload_bytes} bytes of payload, it takes none"
        )

    def _refuse_opcode(self, opcode: int) -> NoReturn:
        if opcode not in COMMANDS:
            raise ProtocolViolation(f"unknown opcode {opcode}")
        peer, name = self._role.peer.value, Opcode(opcode).name
        if not is_known(Opcode(opcode), self.version):
            since = COMMANDS_SINCE[Opcode(opcode)]
            raise ProtocolViolation(
                f"the {peer} may not send {name}: {needs('it', since, self.version)}"
            )
        raise ProtocolViolation(f"the {peer} may not send {name} in the state {self.state.value}")

    def _refuse_truncated(self) -> NoReturn:
        if self._pending is not None:
            received, expected = self._inbox.direct_progress
            raise BrokerUnavailable(
                f"the connection ended in the middle of a frame: {received} of {expected} payload bytes came"
            )
        raise BrokerUnavailable(
            f"the connection ended in the middle of a frame, of which {self._inbox.end - self._inbox.start} bytes came"
        )

    def _look_twice(self, command: AnyCommand) -> int:
        """The opcode of a command that an older peer may understand after all, or why it is not sent."""
        opcode = command.opcode
        if opcode not in LEGAL[self.state][self._role]:
            if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
                raise BrokerUnavailable(
                    f"the connection is {self.state.value}: {opcode.name} was not sent"
                )
            raise InvariantViolation(
                f"the {self._role.value} may not send {opcode.name} in the state {self.state.value}"
            )
        if not is_known(opcode, self.version):
            raise UnsupportedVersion(needs(opcode.name, COMMANDS_SINCE[opcode], self.version))
        check_fields(command, self.version)
        return int(opcode)

    def _refuse_send_size(self, opcode: int, size: int, meta_bytes: int) -> NoReturn:
        name = Opcode(opcode).name
        if meta_bytes > FRAME_META_BYTES_MAX:
            raise MessageTooLarge(
                f"the command of a {name} frame has {meta_bytes} bytes, at most {FRAME_META_BYTES_MAX} are allowed"
            )
        raise MessageTooLarge(
            f"a {name} frame of {size} bytes is above the limit of {self._send_bytes_max} bytes"
        )
