"""Storage, as operators ask about it: the ledgers of topics, moving them to cold storage, proving them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from danubius.admin.targets import find_target
from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    LedgerDamaged,
    ObjectNotFound,
    UnsupportedVersion,
)
from danubius.ledger.entry import LedgerRef
from danubius.ledger.managed import ManagedLedger
from danubius.model import admin, admin_replies
from danubius.model.admin_pages import take_page
from danubius.model.admin_replies import PlaceChecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from danubius.broker.node import Node
    from danubius.ledger.entry import LedgerMeta
    from danubius.model.admin_replies import OnReply
    from danubius.shard.features.offload.offloading import Offloading
    from danubius.shard.hosting.topic import Topic


def _list_ledgers(node: Node, request: admin.ListLedgers, on_reply: OnReply) -> None:
    target = find_target(node.shard, request.topic)
    after = _parse_after(request.after)
    lines = _lines(target.topics, *after)
    page, more = take_page(lines, request.limit, lambda line: f"{line.topic}#{line.ledger_id}")
    url = node.offloading.url if node.offloading is not None else ""
    on_reply(admin_replies.LedgersListed(page, url, next=more))


def _parse_after(after: str) -> tuple[str, int]:
    if not after:
        return "", -1
    topic, sign, number = after.rpartition("#")
    if not sign or not number.isdecimal():
        raise InvalidArgument(f"after is {after!r}; it must be the next of a page of ledgers")
    return topic, int(number)


def _lines(
    topics: list[Topic], after_topic: str, after_id: int
) -> Iterator[admin_replies.LedgerSummary]:
    names: list[str] = [topic.name for topic in topics]
    start = names.index(after_topic) if after_topic in names else 0
    for topic in topics[start:]:
        for meta in _ledgers(topic):
            if topic.name != after_topic or meta.ledger_id > after_id:
                yield _summarise(topic.name, meta)


def _ledgers(topic: Topic) -> list[LedgerMeta]:
    return topic.log.ledgers if isinstance(topic.log, ManagedLedger) else []


def _summarise(topic: str, meta: LedgerMeta) -> admin_replies.LedgerSummary:
    tier = "cold" if meta.is_cold else "both" if meta.object_name else "local"
    return admin_replies.LedgerSummary(
        topic,
        meta.ledger_id,
        meta.epoch,
        meta.base_offset,
        meta.end_offset,
        meta.data_bytes,
        meta.first_time_us,
        meta.last_time_us,
        meta.created_ms,
        meta.is_sealed,
        tier,
        meta.object_name,
        meta.object_bytes,
    )


def _offload_topic(node: Node, request: admin.OffloadTopic, on_reply: OnReply) -> None:
    offloading = _offloading(node)
    target = find_target(node.shard, request.topic)
    until: dict[str, int] = {}
    problem = ""
    ledgers = stored = size = stored_bytes = 0
    for topic in target.topics:
        if not topic.is_reliable:
            raise InvalidArgument(f"{topic.name} is non-reliable, and stores nothing")
        below = request.until.get(topic.name, topic.log.end_offset)
        until[topic.name] = below
        offloading.force(topic, below)
        problem = problem or offloading.problem_of(topic)
        for meta in _ledgers(topic):
            if meta.base_offset < below:
                ledgers += 1
                size += meta.data_bytes
                stored += bool(meta.object_name)
                stored_bytes += meta.data_bytes if meta.object_name else 0
    on_reply(admin_replies.TopicOffloading(until, ledgers, stored, size, stored_bytes, problem))


def _offloading(node: Node) -> Offloading:
    if node.offloading is None:
        raise InvalidArgument(
            "this broker has no cold storage: start it with --tier-url, such as s3://bucket/prefix; one without a disk "
            "(--diskless) has nothing to move there"
        )
    return node.offloading


def _check_ledger(node: Node, request: admin.CheckLedger, on_reply: OnReply) -> None:
    topic = node.shard.topic(request.topic)
    found = [meta for meta in _ledgers(topic) if meta.ledger_id == request.ledger_id]
    if not found:
        raise InvalidArgument(
            f"{topic.name} has no ledger {request.ledger_id}; `danubius topics ledgers {topic.name}` shows its ledgers"
        )
    meta = found[0]
    ref = LedgerRef(topic.id, meta.ledger_id)
    ledgers, offloading = node.shard.ledgers, node.offloading
    places: list[PlaceChecked] = []

    def finish() -> None:
        on_reply(admin_replies.LedgerChecked(topic.name, meta.ledger_id, places))

    def checked_local(result: object) -> None:
        places.append(_found("local", meta.data_bytes, result))
        check_cold()

    def check_cold() -> None:
        if not meta.object_name or offloading is None:
            if meta.is_cold:
                places.append(PlaceChecked("cold", 0, "this broker has no cold storage to look in"))
            finish()
            return
        offloading.check_object(topic.id, meta, checked_cold)

    def checked_cold(result: object) -> None:
        places.append(_found("cold", meta.object_bytes, result))
        finish()

    if meta.is_local:
        ledgers.check_ledger(ref, meta, checked_local)
    else:
        check_cold()


def _found(tier: str, size: int, result: object) -> PlaceChecked:
    match result:
        case LedgerDamaged():
            return PlaceChecked(tier, size, result.message, result.first, result.end)
        case ObjectNotFound() | UnsupportedVersion():
            return PlaceChecked(tier, 0, result.message)
        case DanubiusError():
            return PlaceChecked(tier, 0, f"it could not be read: {result.message}")
        case _:
            return PlaceChecked(tier, size)


ADMIN: Final[dict[type, Callable[[Node, Any, OnReply], None]]] = {
    admin.ListLedgers: _list_ledgers,
    admin.OffloadTopic: _offload_topic,
    admin.CheckLedger: _check_ledger,
}

_ = functools
