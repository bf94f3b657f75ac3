# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (pandas comes without types)
"""Sessions: runs of events of one key with no gap between them longer than so much, by `transformWithState`.

A session is told when the watermark has passed its end by the gap, so a late event within the watermark still joins the
session it belongs to, or joins two sessions into one. State is the open sessions of a key, no rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from danubius.errors import InvalidArgument
from danubius.pipeline.values import duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

STATE = StructType(
    [
        StructField("start_ms", LongType()),
        StructField("end_ms", LongType()),
        StructField("events", LongType()),
    ]
)


class Session(NamedTuple):
    """From its first event to its last."""

    start_ms: int
    end_ms: int
    events: int


def merge(sessions: Iterable[Session], gap_ms: int) -> list[Session]:
    """Sessions that are no further apart than the gap become one."""
    merged: list[Session] = []
    for each in sorted(sessions):
        if merged and each.start_ms - merged[-1].end_ms <= gap_ms:
            last = merged[-1]
            merged[-1] = Session(
                last.start_ms, max(last.end_ms, each.end_ms), last.events + each.events
            )
        else:
            merged.append(each)
    return merged


class Sessions(StatefulProcessor):
    """Groups by key; one timer for every open session."""

    def __init__(self, key: str, time: str, gap_ms: int) -> None:
        self._key = key
        self._time = time
        self._gap_ms = gap_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._open = handle.getListState("open", STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Any]:
        del timerValues
        sessions = self._load()
        for part in rows:
            sessions += _runs(part[self._time], self._gap_ms)
        self._save(merge(sessions, self._gap_ms))
        yield self._output(key, [])

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        del timerValues
        now_ms = expiredTimerInfo.getExpiryTimeInMs()
        sessions = self._load()
        over = [each for each in sessions if each.end_ms + self._gap_ms < now_ms]
        self._save([each for each in sessions if each not in over])
        yield self._output(key, over)

    def close(self) -> None:
        """Nothing is held beside Spark's state."""

    def _load(self) -> list[Session]:
        return [Session(*map(int, row)) for row in self._open.get()] if self._open.exists() else []

    def _save(self, sessions: list[Session]) -> None:
        if not sessions:
            self._open.clear()
            return
        self._open.put([tuple(each) for each in sessions])
        for each in sessions:
            self._handle.registerTimer(each.end_ms + self._gap_ms + 1)

    def _output(self, key: Any, sessions: list[Session]) -> Any:
        return pd.DataFrame(
            {
                self._key: pd.Series([key[0]] * len(sessions), dtype="object"),
                "started": pd.to_datetime([each.start_ms for each in sessions], unit="ms"),
                "ended": pd.to_datetime([each.end_ms for each in sessions], unit="ms"),
                "events": pd.Series([each.events for each in sessions], dtype="int64"),
            }
        )


def _runs(times: Any, gap_ms: int) -> list[Session]:
    """The sessions of one piece of input: pandas finds the gaps, Python sees one object a session."""
    ordered = times.sort_values()
    milliseconds = ordered.astype("datetime64[ms]").astype("int64")
    groups = milliseconds.groupby((milliseconds.diff() > gap_ms).cumsum())
    found = groups.agg(["min", "max", "count"])
    return [Session(*map(int, row)) for row in found.itertuples(index=False)]


def sessions(
    frame: DataFrame, key: str = "key", time: str = "at", gap: str = "30 minutes"
) -> DataFrame:
    """For a step: one row for every session, `key, started, ended, events`; the input needs a watermark on `time`."""
    gap_ms = duration_ms(gap)
    if gap_ms is None:
        raise InvalidArgument(f'gap is {gap!r}; it must be a time such as "30 minutes"')
    output = StructType(
        [
            StructField(key, StringType()),
            StructField("started", TimestampType()),
            StructField("ended", TimestampType()),
            StructField("events", LongType()),
        ]
    )
    return (
        frame.select(key, time)
        .groupBy(key)
        .transformWithStateInPandas(Sessions(key, time, gap_ms), output, "append", "eventTime")
    )
