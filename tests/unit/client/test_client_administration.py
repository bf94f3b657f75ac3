"""`client.admin`: requests are checked before they leave, and a method is there for each."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import danubius
from danubius.client.administration import Administration
from danubius.client.blocking.administration import BlockingAdministration
from danubius.client.core.moves import RANGES_MAX, MoveGuard
from danubius.errors import InvalidArgument, InvalidName, ProtocolViolation, UnsupportedVersion
from danubius.model import admin, admin_replies
from danubius.model.admin_codec import decode_request, encode_reply
from danubius.wire.commands import Administer, Administered

if TYPE_CHECKING:
    from danubius.wire.frame import Frame
    from unit.client.scripted_broker import Peer, ScriptedBroker

TOPIC = "/default/t"


def serve(broker: ScriptedBroker, answer: Any) -> list[Any]:
    """Let the broker answer requests; returns those that it got."""
    got: list[Any] = []

    def administer(peer: Peer, frame: Frame) -> None:
        command = frame.command
        assert isinstance(command, Administer)
        got.append(decode_request(command.request))
        reply = answer(got[-1])
        peer.send(Administered(msgspec.Raw(encode_reply(reply))), frame.correlation_id)

    broker.version = 2
    broker.on[Administer] = administer
    return got


def answer_done(_request: Any) -> admin_replies.Done:
    return admin_replies.Done()


async def test_a_broker_of_the_first_protocol_cannot_be_administered(
    broker: ScriptedBroker,
) -> None:
    async with danubius.connect(broker.url) as client:
        with pytest.raises(UnsupportedVersion, match="upgrade"):
            await client.admin.describe_broker()
    assert not broker.commands(Administer)


async def test_mistakes_are_told_before_anything_is_sent(broker: ScriptedBroker) -> None:
    got = serve(broker, answer_done)
    async with danubius.connect(broker.url) as client:
        wrong: Any = 5
        with pytest.raises(InvalidName):
            await client.admin.describe_topic("no-slash")
        with pytest.raises(InvalidArgument):
            await client.admin.describe_topic(wrong)
        with pytest.raises(InvalidArgument, match="count"):
            await client.admin.skip(TOPIC, "s", 0)
        with pytest.raises(InvalidArgument, match="type"):
            await client.admin.create_subscription(TOPIC, "s", type=wrong)
        with pytest.raises(InvalidArgument):
            await client.admin.seek(TOPIC, "s", -1)
    assert got == []


async def test_a_list_is_gathered_page_by_page(broker: ScriptedBroker) -> None:
    names = [f"/default/t{n}" for n in range(5)]

    def answer(request: admin.ListTopics) -> admin_replies.TopicsListed:
        left = [name for name in names if name > request.after][: min(2, request.limit)]
        more = left[-1] if left and left[-1] != names[-1] else ""
        return admin_replies.TopicsListed(
            [admin_replies.TopicSummary(one) for one in left], next=more
        )

    got = serve(broker, answer)
    async with danubius.connect(broker.url) as client:
        assert [line.topic for line in await client.admin.list_topics()] == names
        assert len(got) == 3
        assert [line.topic for line in await client.admin.list_topics(limit=3)] == names[:3]
        assert all(request.limit <= 3 for request in got[3:])


async def test_an_answer_to_another_question_is_a_violation(broker: ScriptedBroker) -> None:
    serve(broker, answer_done)
    async with danubius.connect(broker.url) as client:
        with pytest.raises(ProtocolViolation, match="Done"):
            await client.admin.describe_broker()
        assert await client.admin.perform(admin.DeleteTopic(TOPIC)) == admin_replies.Done()


def test_the_blocking_client_has_every_method_with_the_same_arguments() -> None:
    for name, method in inspect.getmembers(Administration, inspect.isfunction):
        if name.startswith("_"):
            continue
        twin = getattr(BlockingAdministration, name)
        ours, theirs = (inspect.signature(one).parameters.values() for one in (method, twin))
        assert [(p.name, p.kind, p.default) for p in ours] == [
            (p.name, p.kind, p.default) for p in theirs
        ], name


def test_only_what_was_handed_out_since_a_move_is_known() -> None:
    guard = MoveGuard()
    assert guard.knows(7), "there was no move"
    guard.moved()
    assert not guard.knows(7)
    guard.note(5, 10)
    guard.note(20, 30)
    guard.note(10, 12)
    guard.note(8, 21)
    assert [n for n in range(40) if guard.knows(n)] == list(range(5, 30))
    guard.moved()
    assert not guard.knows(7)
    assert guard.count == 2
    for n in range(RANGES_MAX + 1):
        assert guard.is_on
        guard.note(n * 2, n * 2 + 1)
    assert guard.knows(1), "long after a move nobody holds what came before"
