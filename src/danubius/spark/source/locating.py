"""Locations of ledgers in the object store, asked of the broker when a read is planned, for `readFrom`.

The broker is asked for names, sizes and offsets only. With `auto` whatever stands in the way of objects (no cold
storage, no way to it from here, an older broker) leaves the read to the broker, and a line in the log says why; with
`tier` it is an error.

Invariant: the offsets of a range stay what they are; only where they come from is added.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danubius.errors import (
    DanubiusError,
    InvalidArgument,
    LedgerDamaged,
    ObjectNotFound,
    OffsetOutOfRange,
    ProtocolViolation,
    TierMisconfigured,
    UnsupportedVersion,
)
from danubius.model.admin import LIMIT_MAX, ListLedgers
from danubius.model.admin_codec import decode_reply, encode_request
from danubius.model.admin_replies import LedgersListed
from danubius.model.topic import is_incarnation_of
from danubius.spark.source.cold_stores import store_of
from danubius.spark.source.planning import ColdObject, seams
from danubius.tier.core.object_format import FOOTER_BYTES, decode_footer, parse_name
from danubius.wire.commands import Administer, Administered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from danubius.model.admin_replies import LedgerSummary
    from danubius.spark.connection.fetching import FetchClient
    from danubius.spark.source.options import ReadOptions
    from danubius.spark.source.planning import Range
    from danubius.tier.objects import ObjectStore

SHOWN_MAX: Final = 5

log = logging.getLogger(__name__)


class Listing(NamedTuple):
    """The ledgers of some topics."""

    tier_url: str
    ledgers: dict[str, list[LedgerSummary]]
    """By what the broker calls the partition, oldest first."""

    def objects_of(self, name: str, incarnation: int) -> list[ColdObject]:
        """Those of a partition that are in the object store. Of another topic of that name nothing counts."""
        found: list[ColdObject] = []
        for line in self.ledgers.get(name, []):
            parts = parse_name(line.object)
            if parts is not None and is_incarnation_of(incarnation, parts[1]):
                found.append(
                    ColdObject(
                        line.object,
                        line.base_offset,
                        line.end_offset,
                        line.bytes,
                        line.object_bytes,
                    )
                )
        return found


def list_ledgers(client: FetchClient, topics: Iterable[str]) -> Listing:
    """All ledgers of these topics; of a partitioned one those of all partitions."""
    tier_url = ""
    ledgers: dict[str, list[LedgerSummary]] = {}
    waiting = dict.fromkeys(topics, "")
    while waiting:
        requests = [
            ListLedgers(topic=topic, after=at, limit=LIMIT_MAX) for topic, at in waiting.items()
        ]
        commands = [Administer(msgspec.Raw(encode_request(request))) for request in requests]
        answers = client.request_all(commands)
        more: dict[str, str] = {}
        for topic, command, answer in zip(waiting, commands, answers, strict=True):
            reply = decode_reply(client.check(command, answer, Administered).reply)
            if not isinstance(reply, LedgersListed):
                raise ProtocolViolation(
                    f"the broker answered ListLedgers with {type(reply).__name__}"
                )
            tier_url = reply.tier_url
            for line in reply.ledgers:
                ledgers.setdefault(line.topic, []).append(line)
            if reply.next:
                more[topic] = reply.next
        waiting = more
    return Listing(tier_url, ledgers)


def locate(client: FetchClient, ranges: list[Range], options: ReadOptions) -> list[Range]:
    """The same ranges, each with where its offsets are to be read from."""
    if options.read_from == "broker" or not ranges:
        return ranges
    if options.tier_url:
        store_of(
            options.tier_url, options
        )  # a slip of the pen is told of, whatever the broker says
    try:
        located = _locate(client, ranges, options)
    except DanubiusError as error:
        is_mistake = isinstance(error, TierMisconfigured) and bool(options.tier_options)
        if options.read_from == "tier" or is_mistake:
            raise
        log.warning("cold storage is not read directly, the broker gives all: %s", error.message)
        return ranges
    if options.read_from == "tier":
        _check_complete(located)
    log.info("planned: %s", describe(located))
    return located


def _locate(client: FetchClient, ranges: list[Range], options: ReadOptions) -> list[Range]:
    listing = list_ledgers(client, sorted({range_.topic for range_ in ranges}))
    url = options.tier_url or listing.tier_url
    if not url:
        if options.read_from == "tier":
            raise TierMisconfigured(
                "readFrom is tier, and the broker has no cold storage: set readFrom to broker or auto"
            )
        return ranges
    objects = {
        range_.name: listing.objects_of(range_.name, range_.incarnation) for range_ in ranges
    }
    located = [
        msgspec.structs.replace(
            range_, segments=seams(range_.begin, range_.end, objects[range_.name]), tier_url=url
        )
        for range_ in ranges
    ]
    first = next((found for range_ in located for found in _objects(range_)), None)
    if first is not None:
        _check_reachable(store_of(url, options), first)
    return located


def _objects(range_: Range) -> list[ColdObject]:
    return [segment.object for segment in range_.segments if segment.object is not None]


def _check_reachable(objects: ObjectStore, first: ColdObject) -> None:
    """One small request. What is wrong with this object alone says nothing about the others."""
    try:
        footer = objects.get(first.name, first.object_bytes - FOOTER_BYTES, FOOTER_BYTES)
        decode_footer(footer, first.object_bytes)
    except (ObjectNotFound, LedgerDamaged, UnsupportedVersion) as error:
        log.info("an object is not as it should be: %s", error)


def _check_complete(ranges: Sequence[Range]) -> None:
    missing = [
        f"offsets {segment.begin} to {segment.end - 1} of {range_.name}"
        for range_ in ranges
        for segment in range_.segments
        if segment.object is None
    ]
    if missing:
        shown = ", ".join(missing[:SHOWN_MAX])
        rest = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
        topic = ranges[0].topic
        raise OffsetOutOfRange(
            f"readFrom is tier, and {shown}{rest} are not in cold storage: move them there"
            f" (`danubius topics offload {topic}`), end before them with endingOffsets, or set readFrom to auto"
        )


def describe(ranges: Sequence[Range]) -> str:
    """Where the offsets of a plan come from, in one line."""
    objects = {o.name for range_ in ranges for o in _objects(range_)}
    cold = sum(
        segment.end - segment.begin
        for range_ in ranges
        for segment in range_.segments
        if segment.object is not None
    )
    total = sum(map(len, ranges))
    place = next((range_.tier_url for range_ in ranges if range_.tier_url), "no cold storage")
    return (
        f"{len(ranges)} ranges, {total} offsets: {cold} from {len(objects)} objects of {place},"
        f" {total - cold} from the broker"
    )


def check_used(options: ReadOptions) -> None:
    """Refuse `readFrom = tier` where only the broker can be read from."""
    if options.read_from == "tier":
        raise InvalidArgument(
            "readFrom is tier: a stream is read from objects with trigger(availableNow=True) only; set it to auto"
        )
