"""The specification says what the code does: commands, error codes, examples."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from danubius.errors import all_error_types
from danubius.model.limits import FRAME_BYTES_MAX, FRAME_META_BYTES_MAX
from danubius.model.policy import FailurePolicy, Policies
from danubius.model.topic import TopicSpec
from danubius.wire.codec import COMMANDS
from danubius.wire.commands import RANGES_MAX, Ack, Hello, Produce, Produced, Welcome
from danubius.wire.connection import Connection
from danubius.wire.frame import HELLO_FRAME_BYTES_MAX, PAYLOAD_OPCODES
from danubius.wire.states import LEGAL, ConnectionState, Role
from danubius.wire.version import COMMANDS_SINCE, FIELDS_SINCE, PROTOCOL_VERSION_MAX

PAGE = (Path(__file__).parents[3] / "docs/internals/wire-protocol.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_page_lists_every_command_with_its_fields_and_senders() -> None:
    written = {
        (int(opcode), name, sender, tuple(re.findall(r"`(\w+)`", fields)))
        for opcode, name, sender, fields, _ in rows("Commands")
    }
    actual = {
        (
            int(opcode),
            command.__name__,
            " and ".join(
                role.value
                for role in Role
                if any(opcode in LEGAL[state][role] for state in ConnectionState)
            ),
            tuple(field.name for field in msgspec.structs.fields(command)),
        )
        for opcode, command in COMMANDS.items()
    }
    assert written == actual


def test_page_says_which_commands_carry_batches() -> None:
    written = {int(opcode) for opcode, _, _, fields, _ in rows("Commands") if "+ " in fields}

    assert written == PAYLOAD_OPCODES


def test_page_says_what_each_version_brought() -> None:
    ((since, commands, named),) = rows("Versions")

    assert int(since) == PROTOCOL_VERSION_MAX
    assert set(commands.split(", ")) == {COMMANDS[opcode].__name__ for opcode in COMMANDS_SINCE}
    assert set(re.findall(r"`([\w.]+)`", named)) == {
        f"{command.__name__}.{field.path}"
        for command, fields in FIELDS_SINCE.items()
        for field in fields
    }


@pytest.mark.parametrize(
    ("kind", "model"), [("policies", Policies), ("failure", FailurePolicy), ("spec", TopicSpec)]
)
def test_page_names_every_key_of_the_maps(kind: str, model: type[msgspec.Struct]) -> None:
    (row,) = re.findall(rf"^\| {kind} \| a map (.*) \|$", PAGE, re.MULTILINE)

    assert set(re.findall(r"\w+", row)) >= set(model.__struct_fields__)


def test_page_lists_every_error_with_its_advice() -> None:
    written = {(int(code), name, advice) for code, name, advice, _ in rows("Errors")}

    assert written == {
        (error.code, error.__name__, error.retry.name.lower().replace("_", " "))
        for error in all_error_types()
    }


@pytest.mark.parametrize(
    "limit", [FRAME_BYTES_MAX, FRAME_META_BYTES_MAX, HELLO_FRAME_BYTES_MAX, RANGES_MAX]
)
def test_page_states_the_limits(limit: int) -> None:
    assert f"{limit:,}" in PAGE


def test_examples_are_what_the_code_sends() -> None:
    client, broker = Connection(Role.CLIENT), Connection(Role.BROKER)
    hello = b"".join(client.send(Hello(1, 1, "doc"), 1))
    broker.receive_data(hello)
    assert broker.next_event() is not None
    welcome = b"".join(broker.send(Welcome(1, "b", FRAME_BYTES_MAX, 8_388_608, 30_000), 1))
    client.receive_data(welcome)
    assert client.next_event() is not None
    sent = [
        hello,
        welcome,
        bytes(client.send(Produce(1), 2, [bytes(8)])[0]),
        b"".join(broker.send(Produced(300), 2)),
        b"".join(client.send(Ack(1, [(0, 10)]))),
    ]
    blocks = re.findall(r"```\n([0-9a-f \n]+)```", PAGE)

    assert [bytes.fromhex(block) for block in blocks] == sent
