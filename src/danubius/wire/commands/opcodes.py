"""The opcode of every command, and what all commands are.

Invariant: a number means one command for ever; a command that is given up leaves its number unused.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec


class Opcode(enum.IntEnum):
    """The opcode byte of a frame. Numbers are never reused."""

    HELLO = 1
    WELCOME = 2
    PING = 3
    PONG = 4
    ERROR = 5
    DONE = 6
    GOODBYE = 7
    LOOKUP = 16
    LOCATED = 17
    CREATE_TOPIC = 18
    DELETE_TOPIC = 19
    LIST_TOPICS = 20
    TOPICS_LISTED = 21
    DESCRIBE_TOPIC = 22
    TOPIC_DESCRIBED = 23
    RESOLVE_OFFSET = 24
    OFFSET_RESOLVED = 25
    TOPIC_CHANGED = 26
    ADMINISTER = 27
    ADMINISTERED = 28
    OPEN_PRODUCER = 32
    PRODUCER_OPENED = 33
    PRODUCE = 34
    PRODUCED = 35
    CLOSE_PRODUCER = 36
    PRODUCER_CLOSED = 37
    STAGE = 38
    SCHEDULE = 39
    SUBSCRIBE = 48
    SUBSCRIBED = 49
    FLOW = 50
    DELIVER = 51
    ACK = 52
    NACK = 53
    CLOSE_CONSUMER = 54
    CONSUMER_CLOSED = 55
    CONSUMER_ACTIVE = 56
    STAGE_ACK = 57
    FETCH = 64
    FETCHED = 65
    BEGIN_TRANSACTION = 72
    TRANSACTION_BEGUN = 73
    COMMIT_TRANSACTION = 74
    ABORT_TRANSACTION = 75
    OPEN_STAGE = 80
    STAGE_OPENED = 81
    UPLOAD = 82
    COMMIT_STAGES = 83
    ABORT_STAGES = 84


class Command(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Base of all commands; `opcode` is the frame's opcode."""

    opcode: ClassVar[Opcode]
