"""The planner of what is to be done next about the ledgers of one topic: seal, upload, reclaim. Decisions alone.

Nothing is remembered from one look to the next, so a plan after a crash, a failure or a change of policy is the plan of
a broker that begins.

Invariants:
- Only a ledger that every kept snapshot knows as sealed is uploaded: no recovery can give its name to other messages.
- Only a ledger that has an object is reclaimed.
- Ages are counted between the broker's own times, so a clock that jumped moves ledgers early or late, and loses none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from danubius.ledger.core.retention import SEAL_AGE_MIN_MS, newest_ms
from danubius.ledger.core.segment import RECOVERED
from danubius.model.policy import FOREVER, NEVER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from danubius.ledger.entry import LedgerMeta
    from danubius.model.policy import Effective

NOT_FORCED: Final = -1


class TopicView(NamedTuple):
    """A topic, as far as offloading looks at it."""

    ledgers: Sequence[LedgerMeta]
    sealed_positions: Sequence[int]
    """Of each ledger: how far the journal was committed when it was sealed."""
    policies: Effective
    forced_below: int = NOT_FORCED
    """Ledgers that begin below this offset are to go at once, whatever the policies say."""
    busy: Collection[int] = ()
    """Ledgers that something is being done about already."""


class Horizon(NamedTuple):
    """What the plan is made against; the same for all topics of one look."""

    now_ms: int
    trimmed_position: int
    """That of the oldest snapshot that is kept."""
    recovered_position: int
    """Where the journal ended at the start: ledgers of earlier processes count as sealed there."""
    is_pressed: bool = False
    """The disk is nearly full: what may go at some time goes now."""


class TopicPlan(NamedTuple):
    """What to do now."""

    must_seal: bool
    uploads: list[LedgerMeta]
    """Oldest first."""
    reclaims: list[LedgerMeta]
    waits: bool
    """Something is due, and waits for the next checkpoint."""
    lag_ms: int
    """How long the oldest ledger that is due has been due."""
    lag_bytes: int
    """Bytes that are due and not in the object store."""


_NOTHING: Final = TopicPlan(
    must_seal=False, uploads=[], reclaims=[], waits=False, lag_ms=0, lag_bytes=0
)


def plan(topic: TopicView, horizon: Horizon) -> TopicPlan:
    """One look at one topic."""
    ledgers = topic.ledgers
    if not ledgers:
        return _NOTHING
    uploads: list[LedgerMeta] = []
    waits = False
    lag_ms = lag_bytes = 0
    for at, due_ms in _due(topic, horizon):
        meta = ledgers[at]
        lag_ms = max(lag_ms, due_ms)
        lag_bytes += meta.data_bytes
        if meta.ledger_id in topic.busy:
            continue
        if _is_settled(topic.sealed_positions[at], horizon):
            uploads.append(meta)
        else:
            waits = True
    must_seal = _must_seal(topic, horizon)
    reclaims = _reclaims(topic, horizon)
    return TopicPlan(must_seal, uploads, reclaims, waits or must_seal, lag_ms, lag_bytes)


def _is_settled(sealed_position: int, horizon: Horizon) -> bool:
    """Whether every kept snapshot knows the ledger as sealed.

    Strictly behind: the commit that sealed it counts only when it is over, and a snapshot may have been taken before.
    """
    if sealed_position == RECOVERED:
        sealed_position = horizon.recovered_position
    return sealed_position < horizon.trimmed_position


def _age_ms(meta: LedgerMeta, following: LedgerMeta | None, horizon: Horizon) -> int:
    """How long ago its last message came. One from the future, by a clock that was ahead, has just come."""
    return max(0, horizon.now_ms - newest_ms(meta, following))


def _due(topic: TopicView, horizon: Horizon) -> list[tuple[int, int]]:
    """Ledgers that are to be uploaded, by their place, and for how long; oldest first."""
    policies, ledgers = topic.policies, topic.ledgers
    local_alone = sum(meta.data_bytes for meta in ledgers if not meta.object_name)
    due: list[tuple[int, int]] = []
    for at, meta in enumerate(ledgers):
        if meta.object_name or not meta.is_sealed or meta.is_lost:
            continue
        following = ledgers[at + 1] if at + 1 < len(ledgers) else None
        age_ms = _age_ms(meta, following, horizon)
        is_old = policies.offload_age_ms != NEVER and age_ms >= policies.offload_age_ms
        is_much = policies.offload_bytes != NEVER and local_alone > policies.offload_bytes
        is_forced = meta.base_offset < topic.forced_below
        if is_old or is_much or is_forced or (horizon.is_pressed and policies.offloads):
            due.append((at, max(0, age_ms - max(0, policies.offload_age_ms))))
            local_alone -= meta.data_bytes
    return due


def _must_seal(topic: TopicView, horizon: Horizon) -> bool:
    """Whether the open ledger is to end, so that a quiet topic comes along."""
    last, policies = topic.ledgers[-1], topic.policies
    if last.is_sealed or last.end_offset == last.base_offset:
        return False
    if last.base_offset < topic.forced_below:
        return True
    age_ms = horizon.now_ms - last.created_ms
    is_old = policies.offload_age_ms != NEVER and (
        age_ms >= max(policies.offload_age_ms, SEAL_AGE_MIN_MS)
    )
    return is_old or (horizon.is_pressed and policies.offloads and age_ms >= SEAL_AGE_MIN_MS)


def _reclaims(topic: TopicView, horizon: Horizon) -> list[LedgerMeta]:
    """Ledgers whose files may go: neither their age nor the size of what is newer keeps them."""
    policies, ledgers = topic.policies, topic.ledgers
    reclaims: list[LedgerMeta] = []
    newer_bytes = 0
    following: LedgerMeta | None = None
    for meta in reversed(ledgers):
        if meta.is_local and meta.object_name:
            newer_bytes += meta.data_bytes
            age_ms = _age_ms(meta, following, horizon)
            is_young = policies.local_age_ms == FOREVER or age_ms < policies.local_age_ms
            is_little = policies.local_bytes == FOREVER or newer_bytes <= policies.local_bytes
            if (horizon.is_pressed or not (is_young or is_little)) and (
                meta.ledger_id not in topic.busy
            ):
                reclaims.append(meta)
        following = meta
    return reclaims[::-1]
