"""Publishing by many connections what one of them decides: stages of jobs, see docs/concepts/stages.md.

A stage outlives its connection and the broker. Every request here may be repeated, on any connection.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from danubius.wire.commands.fields import Count
from danubius.wire.commands.opcodes import Command, Opcode

STAGES_MAX: Final = 40_000
"""Stages that one commit names: at 20 bytes each in the worst case, they fit the command part of a frame."""

Stages = Annotated[list[tuple[Count, Count]], msgspec.Meta(max_length=STAGES_MAX)]
"""The number of each stage, and how many batches were uploaded into it."""


class OpenStage(Command, frozen=True):
    """Begin what one attempt of a task writes for a batch of a job, or go on with it. Answered by StageOpened."""

    opcode = Opcode.OPEN_STAGE
    job: str
    """Of a streaming query, what stays the same when it is restarted."""
    batch: Count
    task: str
    """Another one for every attempt: what is uploaded under one name is published together or not at all."""


class StageOpened(Command, frozen=True):
    """The number of the stage. 0: the batch is committed, so nothing that is uploaded for it would count."""

    opcode = Opcode.STAGE_OPENED
    stage: Count
    next_index: Count
    """So many batches of it are stored."""


class Upload(Command, frozen=True):
    """+ batches (exactly one). Publish it in a topic if the stage is committed. Answered by Done: it is written.

    A batch that is there already is answered in the same way. The producer in its header is 0.
    """

    opcode = Opcode.UPLOAD
    stage: Count
    index: Count
    """The first batch of a stage has 0, the next 1."""
    topic: str


class CommitStages(Command, frozen=True):
    """Publish what these stages hold, as this batch of the job. Answered by Done once it is durable and visible.

    A batch that was committed, or a lower one than the last that was, changes nothing and is answered by Done.
    """

    opcode = Opcode.COMMIT_STAGES
    job: str
    batch: Count
    stages: Stages


class AbortStages(Command, frozen=True):
    """Drop these stages of a batch, without any: all of that batch. Answered by Done; InvalidArgument if committed."""

    opcode = Opcode.ABORT_STAGES
    job: str
    batch: Count
    stages: Stages
