"""Stages for programs without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from danubius.client.blocking.loop_thread import LoopThread
    from danubius.client.producing.staging import Stage, StageReceipt
    from danubius.model.buffers import Buffer


class BlockingStage:
    """Messages of one attempt of one task; seen by nobody before the commit. See `danubius.Client.stage`."""

    def __init__(self, loop: LoopThread, stage: Stage) -> None:
        self._loop = loop
        self._stage = stage

    @property
    def is_over(self) -> bool:
        """Whether the batch was committed before."""
        return self._stage.is_over

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has, 0 for a plain one; it is created if it does not exist."""
        return self._loop.run(self._stage.partitions(topic))

    def send_many(
        self,
        topic: str,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Mapping[str, str] | None] | None = None,
    ) -> None:
        """Stage messages for a topic."""
        self._loop.run(self._stage.send_many(topic, payloads, keys=keys, attributes=attributes))

    def upload(
        self, topic: str, batch: Buffer, messages: int, *, partition: int | None = None
    ) -> None:
        """Stage an encoded record batch for a plain topic, or for a partition."""
        self._loop.run(self._stage.upload(topic, batch, messages, partition=partition))

    def finish(self) -> StageReceipt:
        """Wait until everything is written. Give what this returns to whoever commits."""
        return self._loop.run(self._stage.finish())
