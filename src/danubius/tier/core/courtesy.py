"""The courtesy of uploads beside publishers, with whom they share disk, cores and network. Decisions alone.

A burst is taken in first and moved afterwards. Who publishes without end shares the machine with the uploads from some
gigabytes of lag on: cold storage falls behind for a while, never for good.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from danubius.model.limits import GIB, MIB

BUSY_BYTES_PER_S: Final = 32 * MIB
"""Publishers who write less than this have nothing of being given way to."""
RATE_MIN: Final = 8 * MIB
"""Uploads go on at this pace at least."""
PATIENT_BYTES: Final = 1 * GIB
"""What may wait before uploads take more than their share; it grows with what waits,"""
IMPATIENT_BYTES: Final = 4 * GIB
"""up to here, where they take all that they can get."""
_MOST_PERCENT: Final = 200


class Traffic(NamedTuple):
    """What the pace depends on."""

    published_bytes_per_s: int
    lag_bytes: int
    """What is due and not in cold storage."""
    is_urgent: bool
    """Somebody waits for it, or the disk fills up."""


def upload_rate(traffic: Traffic, share_percent: int, bytes_per_s_max: int) -> int:
    """Bytes a second for all uploads together; 0: no bound, also of the last argument."""
    if (
        not share_percent
        or traffic.is_urgent
        or traffic.published_bytes_per_s < BUSY_BYTES_PER_S
        or traffic.lag_bytes >= IMPATIENT_BYTES
    ):
        return bytes_per_s_max
    waits = max(0, traffic.lag_bytes - PATIENT_BYTES)
    more_percent = max(0, _MOST_PERCENT - share_percent)
    percent = share_percent + more_percent * waits // (IMPATIENT_BYTES - PATIENT_BYTES)
    rate = max(RATE_MIN, traffic.published_bytes_per_s * percent // 100)
    return min(rate, bytes_per_s_max) if bytes_per_s_max else rate
