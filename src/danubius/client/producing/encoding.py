"""The last step of a lane: messages become a batch with its producer's fields, or an error that can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danubius.errors import DanubiusError, InvalidArgument
from danubius.record.encode import encode

if TYPE_CHECKING:
    from danubius.client.core.batching import Draft
    from danubius.client.core.outbox import Outbox
    from danubius.client.producing.settlement import Settlement
    from danubius.record.batch import Codec


def encode_draft(
    draft: Draft,
    outbox: Outbox[Settlement],
    codec: Codec,
    publish_time_us: int,
    ttl_us: int = 0,
    *,
    is_chunk: bool = False,
) -> bytearray | DanubiusError:
    """The batch, or why there is none: whatever it is, those who wait for the messages must hear of it."""
    try:
        return encode(
            draft.payloads,
            publish_time_us=publish_time_us,
            keys=draft.keys,
            attributes=draft.attributes,
            producer_id=outbox.producer_id,
            producer_epoch=outbox.producer_epoch,
            base_sequence=outbox.next_sequence,
            codec=codec,
            expires_us=publish_time_us + ttl_us if ttl_us else None,
            is_chunk=is_chunk,
        )
    except DanubiusError as error:
        return error
    except Exception as error:  # noqa: BLE001  # see above
        refusal = InvalidArgument(
            f"the messages cannot be encoded: {type(error).__name__}: {error}"
        )
        refusal.__cause__ = error
        return refusal
