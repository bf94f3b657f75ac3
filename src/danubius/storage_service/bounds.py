"""Every bound of the storage service, each with its reason. `storage.proto` promises some of them to others."""

from __future__ import annotations

from typing import Final

from danubius.model.limits import GIB, MIB

MESSAGE_BYTES_MAX: Final = 8 * MIB
"""One message on the wire; a worker of the server holds one at a time."""
DATA_BYTES_MAX: Final = 4 * MIB
"""Data that a broker puts into one call, and a server into one piece: what the ledgers write and read at once."""
APPENDS_MAX: Final = 4096
"""Ledgers of one call."""
READ_BYTES_MAX: Final = 1 * GIB
"""One read; it is sent in pieces, so this bounds time, not memory."""
KNOWN_MAX: Final = 4_000_000
"""Ledgers of one broker that a server is told of: about a gigabyte of memory."""
KNOWN_PER_MESSAGE: Final = 4096
REFS_PER_MESSAGE: Final = 8192
SYNCED_PER_MESSAGE: Final = 100_000
"""Ledgers of one sync: as many as fit, for each call syncs anew."""
CALL_SECONDS_MAX: Final = 120.0
"""The latest deadline: a worker is never held for longer."""
RECEIVE_SECONDS_MAX: Final = 10.0
"""For a message to arrive once a worker waits for it,"""
CROWD_SECONDS_MAX: Final = 1.0
"""and while every worker waits for one."""

WORKERS: Final = 16
"""Calls of a server that are carried out at once; each holds a message at most."""
READERS_MAX: Final = 12
"""Of these, reading ones: whoever reads slowly must not keep others from writing."""
CALLS_MAX: Final = 512
"""Calls of a server that wait or are carried out; gRPC refuses more."""
CALLS_PER_CONNECTION_MAX: Final = 128
"""More wait on the client's side."""
STORES_MAX: Final = 64
"""Stores that a server has open: one for each broker that uses it."""
TIDY_SECONDS: Final = 1.0
KEEPALIVE_MS: Final = 20_000
"""A connection silent for this long is asked whether it is alive, and ended without an answer in half the time."""

DEADLINE_SECONDS: Final = 15.0
"""For reading and appending, repetitions included."""
SLOW_DEADLINE_SECONDS: Final = 60.0
"""For what takes as long as there is much: sync, list, recover, delete a topic."""
ATTEMPTS_MAX: Final = 4
"""Of one call. The ledgers try again themselves, so this need only bridge a lost connection."""
RETRY_FIRST_SECONDS: Final = 0.05
RECONNECT_MS_MAX: Final = 1_000
"""Between two attempts to reach a server that is away; gRPC's own bound is two minutes."""
