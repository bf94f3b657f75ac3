"""Bounds of a streaming query's next step: discovery, admission and the loss of data, as a query's driver sees them.

A `Follower` belongs to one run of one query. What it decides is written down by Spark before anything is read, so
nothing here has to come out the same twice: only `ranges` is asked again for a batch that is repeated, and that
depends on the offsets alone (where a partition has no beginning yet, on where its log begins).

Invariants: offsets never go back, except where a topic was made anew and the query may lose data; a batch that begins
at the symbolic offset is empty; "nothing new" is the start itself.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from danubius.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    TopicDeleted,
    TopicNotFound,
)
from danubius.spark.connection.fetching import client_of
from danubius.spark.source.discovery import Extent, find_partitions, measure, resolve
from danubius.spark.source.locating import check_used, locate
from danubius.spark.source.offsets import SYMBOLIC, from_json, incarnations_of, is_symbolic, to_json
from danubius.spark.source.options import FROM_EARLIEST, FROM_LATEST
from danubius.spark.source.planning import Cutting, Range, limit_bytes, limit_offsets, plan
from danubius.spark.source.reporting import Reporter
from danubius.spark.source.tasks import KEEP_GOING
from danubius.spark.worker import task_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from danubius.spark.source.discovery import Names
    from danubius.spark.source.offsets import Incarnations, Offsets, Slot
    from danubius.spark.source.options import ReadOptions

DISCOVERY_S: Final = 1.0
"""New partitions and topics are looked for so often at most: a trigger may come every few milliseconds."""
SMALL_BATCH: Final = 10_000
"""Records that are one task's work whatever their size: sizes are not asked for."""
CHECKPOINT: Final = "the checkpoint"
"""Where offsets come from, in errors about them."""

log = logging.getLogger(__name__)


class Follower:
    """The driver's side of one streaming read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = client_of(options.url, options.patience)
        self._names: Names = {}
        self._discovered_at: float | None = None
        self._last: Offsets | None = None
        """Where to stop with Trigger.AvailableNow; None: never."""
        self._ends: Offsets = {}
        self._waits_since: float | None = None
        self._said = ""
        self._reporter = (
            None if options.subscription is None else Reporter(self._client, options.subscription)
        )

    # ------------------------------------------------------------ where a query begins

    def beginning(self) -> dict[str, Any]:
        """The same whenever it is asked, and it is asked several times for one query: nothing is looked up.

        The earliest offsets are those of a query that has read nothing. All others are looked up once, in the end of
        the first batch, which is empty: Spark keeps that.
        """
        starting = self._options.starting or FROM_LATEST
        if starting == FROM_EARLIEST:
            return {}
        if starting == FROM_LATEST:
            return {SYMBOLIC: "latest"}
        if starting.time_us is not None:
            return {SYMBOLIC: f"time {starting.time_us}"}
        return {SYMBOLIC: to_json(starting.per_slot(), {})}

    # ------------------------------------------------------------ how far the next batch goes

    def hold(self) -> None:
        """Go no further than what is there now."""
        self._discover(at_once=True)
        self._last = {
            slot: extent.end for slot, extent in self._measure(self._names, sizes=False).items()
        }

    def advance(self, start: dict[str, Any], *, unlimited: bool = False) -> dict[str, Any]:
        """The offsets at which the batch that begins at `start` ends; `start` itself: there is no batch."""
        options = self._options
        if self._reporter is not None:
            self._reporter.flush()
        names = self._discover(at_once=is_symbolic(start))
        if is_symbolic(start):
            extents = self._measure(names, sizes=False)
            begin = resolve(self._client, options.starting or FROM_LATEST, names, "startingOffsets")
            return to_json(begin, _incarnations(extents))
        known = from_json(start, CHECKPOINT)
        self._check_topics(known)
        extents = self._measure(names, sizes=bool(options.max_bytes_per_trigger))
        begin = self._begin(known, incarnations_of(start, CHECKPOINT), extents)
        self._ends = {slot: extent.end for slot, extent in extents.items()}
        end = self._reachable(begin, extents)
        if not unlimited:
            if self._waits(begin, end):
                return start
            end = self._limited(begin, end, extents)
        # A partition without records joins when it has some: it would make an empty batch.
        joined = {slot: at for slot, at in end.items() if slot in known or at > begin[slot]}
        told = to_json(joined, _incarnations(extents))
        return start if told == start else told

    def newest(self) -> dict[str, Any] | None:
        """Where the topics ended when they were last looked at."""
        return to_json(self._ends, {}) if self._ends else None

    def _begin(
        self, known: Offsets, lives: Incarnations, extents: Mapping[Slot, Extent]
    ) -> Offsets:
        """Where each partition goes on; says what is lost."""
        begin: Offsets = {}
        for slot, extent in extents.items():
            at = known.get(slot, extent.start)
            if _is_another(lives.get(slot, 0), extent):
                self._lose(
                    f"partition {slot.partition} of {slot.topic} was deleted and made anew after it had been read up"
                    f" to offset {at}"
                )
                at = extent.start
            elif at > extent.end:
                self._lose(
                    f"partition {slot.partition} of {slot.topic} ends at offset {extent.end}, but was read up to {at}:"
                    " it was made anew, or its broker lost what was not synced"
                )
                at = extent.start
            elif at < extent.start:
                self._lose(
                    f"offsets {at} to {extent.start - 1} of partition {slot.partition} of {slot.topic} are gone before"
                    " they were read: the topic's retention is shorter than the query's lag"
                )
                at = extent.start
            begin[slot] = at
        for slot in sorted(set(known) - set(extents)):
            self._lose(f"partition {slot.partition} of {slot.topic} was deleted")
        return begin

    def _reachable(self, begin: Offsets, extents: Mapping[Slot, Extent]) -> Offsets:
        if self._last is None:
            return {slot: extent.end for slot, extent in extents.items()}
        last = self._last
        return {
            slot: min(extent.end, max(begin[slot], last[slot]))
            for slot, extent in extents.items()
            if slot in last
        }

    def _waits(self, begin: Offsets, end: Offsets) -> bool:
        """Whether too little is there for a batch, and not for too long."""
        least = self._options.min_offsets_per_trigger
        waiting = sum(at - begin[slot] for slot, at in end.items())
        if not least or self._last is not None or not waiting or waiting >= least:
            self._waits_since = None
            return False
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < self._options.max_trigger_delay_s:
            return True
        self._waits_since = None
        return False

    def _limited(self, begin: Offsets, end: Offsets, extents: Mapping[Slot, Extent]) -> Offsets:
        options = self._options
        if options.max_offsets_per_trigger:
            end = limit_offsets(begin, end, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            sizes = {slot: extent.record_bytes for slot, extent in extents.items()}
            end = limit_bytes(begin, end, options.max_bytes_per_trigger, sizes)
        return end

    # ------------------------------------------------------------ what a batch reads

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        """The ranges of the batch between two offsets, one for each task."""
        if is_symbolic(start):
            return []
        begin = from_json(start, CHECKPOINT)
        stop = from_json(end, CHECKPOINT)
        self._check_topics(stop)
        lives = incarnations_of(end, CHECKPOINT)
        for slot, life in incarnations_of(start, CHECKPOINT).items():
            if lives.get(slot, life) != life:
                begin.pop(slot, None)  # made anew: what was reached says nothing about this one
        moved = {slot: at for slot, at in stop.items() if begin.get(slot) != at}
        names = self._known(moved)
        extents: dict[Slot, Extent] = {}
        if _needs_extents(begin, {slot: moved[slot] for slot in names}):
            extents = self._measure(names, sizes=True)
        ranges: list[Range] = []
        for slot, name in names.items():
            first, extent, life = begin.get(slot), extents.get(slot), lives.get(slot, 0)
            if extent is not None and _is_another(life, extent):
                self._lose(f"partition {slot.partition} of {slot.topic} was deleted and made anew")
                continue
            if first is None or first > moved[slot]:
                if extent is None:
                    continue  # deleted since, and the query goes on without
                first = min(extent.start, moved[slot])
            size = extent.record_bytes if extent is not None else 0.0
            ranges.append(Range(*slot, name, first, moved[slot], size, life))
        options = self._options
        least, most = options.min_partitions, options.max_records_per_partition
        planned = plan(ranges, Cutting(least, most, slots=task_slots()))
        if self._last is None:
            # It follows the end of its topics, which is never in objects.
            check_used(options)
            return planned
        return locate(self._client, planned, options)

    def _known(self, slots: Mapping[Slot, int]) -> Names:
        """What the broker calls these partitions; without those that are gone."""
        names = self._names
        if any(slot not in names for slot in slots):
            names = self._discover(at_once=True)
        for slot in slots:
            if slot not in names:
                self._lose(f"partition {slot.partition} of {slot.topic} was deleted")
        return {slot: names[slot] for slot in sorted(slots) if slot in names}

    # ------------------------------------------------------------ what was read

    def committed(self, end: dict[str, Any]) -> None:
        """A batch is done. Spark tells this when it begins the next one."""
        if self._reporter is None or is_symbolic(end):
            return
        offsets = from_json(end, CHECKPOINT)
        names = self._names
        self._reporter.report({names[slot]: at for slot, at in offsets.items() if slot in names})

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.flush(at_once=True)
        self._client.close()

    # ------------------------------------------------------------ asking the broker

    def _discover(self, *, at_once: bool = False) -> Names:
        now = time.monotonic()
        last = self._discovered_at
        if at_once or last is None or now - last >= DISCOVERY_S:
            try:
                self._names = find_partitions(self._client, self._options)
            except (TopicNotFound, TopicDeleted) as error:
                if last is None:
                    raise
                self._lose(error.message)
                self._names = {}
            self._discovered_at = now
        return self._names

    def _measure(self, names: Names, *, sizes: bool) -> dict[Slot, Extent]:
        extents: dict[Slot, Extent] = {}
        for slot, found in measure(self._client, names, sizes=sizes).items():
            if isinstance(found, Extent):
                extents[slot] = found
            elif not isinstance(found, TopicNotFound | TopicDeleted):
                raise found
        return extents

    def _check_topics(self, offsets: Offsets) -> None:
        """Refuse a checkpoint that is about something else."""
        if self._options.pattern is not None:
            return
        strange = sorted({slot.topic for slot in offsets} - set(self._options.topics))
        if strange and self._options.fail_on_data_loss:
            raise InvalidArgument(
                f"the checkpoint is of a query that read {', '.join(strange)}, this one reads"
                f" {', '.join(self._options.topics)}: give it a checkpointLocation of its own, or set failOnDataLoss"
                " to false to leave those topics out"
            )

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{what}. {KEEP_GOING}")
        if what != self._said:  # it is seen again at every trigger until the offsets are past it
            log.warning("data loss, which failOnDataLoss=false allows: %s", what)
            self._said = what


def _incarnations(extents: Mapping[Slot, Extent]) -> Incarnations:
    return {slot: extent.incarnation for slot, extent in extents.items()}


def _is_another(incarnation: int, extent: Extent) -> bool:
    """Whether what is there now only has the name of what was meant."""
    return bool(incarnation and extent.incarnation) and extent.incarnation != incarnation


def _needs_extents(begin: Offsets, stop: Offsets) -> bool:
    if any(slot not in begin or begin[slot] > at for slot, at in stop.items()):
        return True
    return sum(at - begin[slot] for slot, at in stop.items()) > SMALL_BATCH
