"""What a snapshot of a broker holds, captured in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.shard.state.capture import Capture
from danubius.shard.state.snapshot import BrokerSnapshot, decode_snapshot, encode_snapshot

if TYPE_CHECKING:
    from danubius.shard.shard import Shard


def captured(shard: Shard) -> bytes:
    capture = Capture(shard)
    for topic in capture.topics:
        capture.look_at(topic)
    return encode_snapshot(capture.snapshot())


def snapshot_of(shard: Shard) -> BrokerSnapshot:
    return decode_snapshot(captured(shard))
