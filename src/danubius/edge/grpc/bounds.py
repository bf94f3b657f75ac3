"""Every bound of the gRPC edge, each with its reason."""

from __future__ import annotations

from typing import Final

from danubius.model.limits import KIB, MIB

CLIENT_MESSAGE_BYTES_MAX: Final = 4 * MIB
"""What Danube's clients take: a larger message would end their stream, and come again, for ever."""
ENVELOPE_BYTES_MAX: Final = 512
"""What the broker adds to a message on its way out: its topic, offset and address."""

GATHERED_MESSAGES_MAX: Final = 1_000
"""Messages of one producer in one batch."""
GATHERED_BYTES_MAX: Final = 1 * MIB
"""The same in bytes, but for a single larger message."""
WAITING_BYTES_MAX: Final = 64 * MIB
"""Messages that wait to be published, all producers together; more are refused as UNAVAILABLE."""
PRODUCERS_MAX: Final = 20_000
"""Open at once; the one unused for longest leaves for the next, and comes back with its next message."""
IDLE_PRODUCER_S: Final = 60.0
"""A producer that neither sends nor asks whether it is well leaves after this long: its client is gone."""
SILENT_PRODUCER_S: Final = 12.0
"""The same where a limit on producers is reached: two questions after its health, which come every 5 s, are missing."""
SWEEP_S: Final = 5.0
"""How often producers and consumers are looked over."""

OPEN_MESSAGES: Final = 10
"""Messages of one stream that are delivered and not acknowledged, unless its subscription was told of more. So a client
that works on one message at a time has 3 s for each before the ack time-out. Danube: all streams together."""
GRANT_S: Final = 0.005
"""Room that acknowledgements free waits this long for more of it."""
STREAM_BYTES: Final = 512 * KIB
"""Bytes that may wait for the reader of one stream."""
STALLED_S: Final = 5.0
"""A stream whose client has all it may have looks this often whether others have acknowledged some of it."""
LOSSY_STREAM_MESSAGES: Final = 16_384
"""The same of a non-reliable topic, where what does not fit is lost."""
LOSSY_STREAM_BYTES: Final = 4 * MIB
ON_THREAD_BYTES: Final = 1 * MIB
"""Larger batches are unpacked on a thread: the loop serves others."""
TURNS_MAX: Final = 16
"""Streams of one consumer: one is served, the others wait for their turn."""
IDLE_CONSUMER_S: Final = 20.0
"""A consumer that has subscribed and neither opens a stream nor asks whether it is well leaves after this long."""
KNOWN_CONSUMERS_MAX: Final = 100_000
"""Consumers whose numbers are kept; the one that subscribed longest ago is forgotten first."""

CLOSE_TOLD_S: Final = 6.0
"""Before a stream ends its client must have heard of it: it asks every 5 s. Otherwise it would come again at once."""
WAIT_S: Final = 1.0
"""A stream whose consumer cannot be attached for now tries again after this long."""
CLOSE_TAKEN_S: Final = 0.2
"""From the answer CLOSE to the end of the stream."""
TOO_LARGE_RETRY_MS: Final = 30_000
"""A message that these clients cannot take is offered to others of its subscription after this long."""
ACK_TIMEOUT_MS: Final = 30_000
"""As Danube's broker does it unless told otherwise: what is not acknowledged in time is delivered again."""
REDELIVERY_DELAY_MS: Final = 1_000
"""The same: before the first redelivery of what failed; it doubles from there."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: a publish time beyond it is a mistake."""
