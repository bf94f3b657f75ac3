"""The endpoints of applications: publish, read, follow, consume."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from danubius.edge.rest.bounds import BINARY_BODY_BYTES_MAX, MESSAGES_BODY_BYTES_MAX
from danubius.edge.rest.endpoint import Binary, Endpoint
from danubius.edge.rest.publishing import (
    BinaryMessage,
    MessagesPublished,
    PublishMessages,
    publish_binary,
)
from danubius.edge.rest.reading import (
    BATCHES,
    FetchMessages,
    LookUpTopic,
    MessagesFetched,
    PositionResolved,
    ResolvePosition,
    TopicLocated,
    fetch,
    fetch_batches,
    look_up,
    resolve,
)
from danubius.edge.rest.sessions import (
    AckMessages,
    CloseSession,
    DescribeSession,
    MessagesReceived,
    NackMessages,
    OpenConsumer,
    ReceiveMessages,
    SessionDescribed,
)
from danubius.edge.rest.tail import EVENT_STREAM, Tail, TailResponse, TailTopic
from danubius.model.admin_replies import Done

if TYPE_CHECKING:
    from danubius.edge.rest.desk import Desk

_TOPIC: Final = "/api/v1/topics/{namespace}/{topic}"
_SESSION: Final = "/api/v1/sessions/{session}"
_DONE: Final = Done()


async def _publish(desk: Desk, request: PublishMessages) -> MessagesPublished:
    return await desk.publisher.publish(request)


async def _look_up(desk: Desk, request: LookUpTopic) -> TopicLocated:
    with desk.line() as line:
        return await look_up(line, request)


async def _resolve(desk: Desk, request: ResolvePosition) -> PositionResolved:
    with desk.line() as line:
        return await resolve(line, request)


async def _fetch(desk: Desk, request: FetchMessages) -> MessagesFetched | Response:
    with desk.line() as line, desk.waits.take() if request.wait_ms else contextlib.nullcontext():
        if not request.wants_batches:
            return await fetch(line, request)
        found = await fetch_batches(line, request)
        headers = {
            "x-danubius-first": str(found.reply.first),
            "x-danubius-next": str(found.reply.next),
            "x-danubius-start-offset": str(found.reply.start_offset),
            "x-danubius-end-offset": str(found.reply.end_offset),
        }
        return Response(found.batches, headers=headers, media_type=BATCHES)


async def _tail(desk: Desk, request: TailTopic) -> TailResponse:
    with contextlib.ExitStack() as held:
        held.enter_context(desk.tails.take())
        line = held.enter_context(desk.line())
        tail = Tail(line, request)
        await tail.open()
        return TailResponse(tail, desk.stopping, held.pop_all().close)


async def _open(desk: Desk, request: OpenConsumer) -> SessionDescribed:
    return await desk.sessions.open(request)


async def _describe(desk: Desk, request: DescribeSession) -> SessionDescribed:
    return desk.sessions.find(request.session).describe()


async def _close(desk: Desk, request: CloseSession) -> Done:
    desk.sessions.find(request.session).close(is_clean=True)
    return _DONE


async def _receive(desk: Desk, request: ReceiveMessages) -> MessagesReceived:
    session = desk.sessions.find(request.session)
    with desk.waits.take() if request.wait_ms else contextlib.nullcontext():
        return await session.receive(request)


async def _ack(desk: Desk, request: AckMessages) -> Done:
    await desk.sessions.find(request.session).ack(request)
    return _DONE


async def _nack(desk: Desk, request: NackMessages) -> Done:
    await desk.sessions.find(request.session).nack(request)
    return _DONE


ENDPOINTS: Final = (
    Endpoint("GET", _TOPIC + "/lookup", LookUpTopic, TopicLocated, _look_up),
    Endpoint("GET", _TOPIC + "/offset", ResolvePosition, PositionResolved, _resolve, errors=(422,)),
    Endpoint(
        "POST",
        _TOPIC + "/messages",
        PublishMessages,
        MessagesPublished,
        _publish,
        status=201,
        binary=Binary(BinaryMessage, publish_binary, BINARY_BODY_BYTES_MAX),
        body_bytes_max=MESSAGES_BODY_BYTES_MAX,
    ),
    Endpoint(
        "GET",
        _TOPIC + "/messages",
        FetchMessages,
        MessagesFetched,
        _fetch,
        errors=(422,),
        headers={"accept": "accept"},
        media=(BATCHES,),
    ),
    Endpoint(
        "GET",
        _TOPIC + "/tail",
        TailTopic,
        None,
        _tail,
        errors=(422,),
        headers={"last_event_id": "last-event-id"},
        media=(EVENT_STREAM,),
    ),
    Endpoint(
        "POST",
        _TOPIC + "/subscriptions/{subscription}/consumers",
        OpenConsumer,
        SessionDescribed,
        _open,
        status=201,
        errors=(422,),
    ),
    Endpoint("GET", _SESSION, DescribeSession, SessionDescribed, _describe),
    Endpoint(
        "POST", _SESSION + "/receive", ReceiveMessages, MessagesReceived, _receive, errors=(422,)
    ),
    Endpoint("POST", _SESSION + "/ack", AckMessages, Done, _ack, status=204),
    Endpoint("POST", _SESSION + "/nack", NackMessages, Done, _nack, status=204),
    Endpoint("DELETE", _SESSION, CloseSession, Done, _close, status=204),
)
