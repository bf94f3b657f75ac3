"""Versions of the protocol that this build speaks, and how two peers agree on one.

The version governs the set of commands and what they mean. It is chosen once, by the broker, in Welcome: the highest
that both speak. The layout of the frame itself has its own version, in the frame's magic.

Invariant: a peer of version 1 never gets a command that it does not know, nor one whose meaning it would miss because
it passes over an appended field. Who wants such a thing of it hears UnsupportedVersion on the own side.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.errors import UnsupportedVersion
from danubius.model.policy import Policies
from danubius.wire.commands import (
    Access,
    AnyCommand,
    CreateTopic,
    Opcode,
    OpenProducer,
    Subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.wire.commands import Hello, Welcome

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 2

COMMANDS_SINCE: Final[Mapping[Opcode, int]] = {
    Opcode.TOPIC_CHANGED: 2,
    Opcode.ADMINISTER: 2,
    Opcode.ADMINISTERED: 2,
    Opcode.STAGE: 2,
    Opcode.SCHEDULE: 2,
    Opcode.STAGE_ACK: 2,
    Opcode.BEGIN_TRANSACTION: 2,
    Opcode.TRANSACTION_BEGUN: 2,
    Opcode.COMMIT_TRANSACTION: 2,
    Opcode.ABORT_TRANSACTION: 2,
    Opcode.OPEN_STAGE: 2,
    Opcode.STAGE_OPENED: 2,
    Opcode.UPLOAD: 2,
    Opcode.COMMIT_STAGES: 2,
    Opcode.ABORT_STAGES: 2,
}
"""The version that brought a command; all others are of version 1."""


class NewField(NamedTuple):
    """A field that came after version 1 and changes what a command asks for."""

    path: str
    since: int
    default: object
    """What an older peer takes it to be."""


FIELDS_SINCE: Final[Mapping[type[AnyCommand], tuple[NewField, ...]]] = {
    CreateTopic: (NewField("spec.policies", 2, Policies()), NewField("partitions", 2, 0)),
    OpenProducer: (
        NewField("spec.policies", 2, Policies()),
        NewField("access", 2, Access.SHARED),
        NewField("keep_sequence", 2, False),
        NewField("is_delayed", 2, False),
    ),
    Subscribe: (NewField("key_filters", 2, ()), NewField("failure", 2, None)),
}
"""What must be left alone in a command to an older peer.

Appended fields that only add to it (`Welcome.url`, `Lookup.watch`, `Located.partitions`, `Nack.reason`,
`Error.wait_ms`, `incarnation`, `Fetch.may_point`) are not here: an older peer may pass over them.
"""


def is_known(opcode: Opcode, version: int) -> bool:
    """Whether the command is part of that version."""
    return COMMANDS_SINCE.get(opcode, PROTOCOL_VERSION_MIN) <= version


def has_new_fields(command: type[AnyCommand], version: int) -> bool:
    """Whether `check_fields` must be asked before such a command goes to a peer of that version."""
    return any(field.since > version for field in FIELDS_SINCE.get(command, ()))


def check_fields(command: AnyCommand, version: int) -> None:
    """Refuse a command with a field set that a peer of that version would pass over."""
    for field in FIELDS_SINCE.get(type(command), ()):
        if field.since > version and attrgetter(field.path)(command) != field.default:
            name = f"{type(command).__name__}.{field.path}"
            raise UnsupportedVersion(needs(name, field.since, version))


def needs(what: str, since: int, version: int) -> str:
    """The sentence about something that came later than the version of a connection."""
    return (
        f"{what} needs protocol version {since}, the connection has version {version}:"
        " upgrade the older of the two"
    )


def choose_version(hello: Hello) -> int:
    """The version to answer with, or UnsupportedVersion."""
    chosen = min(hello.version_max, PROTOCOL_VERSION_MAX)
    if chosen < max(hello.version_min, PROTOCOL_VERSION_MIN):
        raise UnsupportedVersion(
            f"the client speaks protocol versions {hello.version_min} to {hello.version_max}, this broker"
            f" {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: upgrade the older of the two"
        )
    return chosen


def check_version(welcome: Welcome) -> int:
    """The version the broker chose, or UnsupportedVersion if this client did not offer it."""
    if not PROTOCOL_VERSION_MIN <= welcome.version <= PROTOCOL_VERSION_MAX:
        raise UnsupportedVersion(
            f"the broker chose protocol version {welcome.version}, this client speaks"
            f" {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: upgrade the older of the two"
        )
    return welcome.version
