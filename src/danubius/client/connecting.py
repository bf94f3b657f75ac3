"""The opening of a client: `danubius.connect(...)`, its options checked before anything is dialled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from danubius.client.client import Client, ProducerKinds
from danubius.client.connection.connections import Connections
from danubius.client.connection.link import LinkOptions
from danubius.client.core.address import parse_urls
from danubius.client.opening import Opening
from danubius.client.options import check_positive
from danubius.client.producing.partitioned_producer import PartitionedProducer
from danubius.client.producing.producer_lane import ProducerLane
from danubius.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danubius.client.core.address import BrokerAddress

DEFAULT_URL: Final = "danube://127.0.0.1:6651"


def connect(
    url: str = DEFAULT_URL,
    *,
    connect_timeout: float = 10.0,
    request_timeout: float = 30.0,
    reconnect_timeout: float = 600.0,
    tracing: bool = False,
    busy_poll: bool = True,
) -> Opening[Client]:
    """Connect to a broker.

    Args:
        url: `danube://host:port`; the port is 6651 if it is left out. Of a cluster one broker is enough; with several,
            `danube://a:6651,b:6651`, the first that answers is used.
        connect_timeout: seconds for one attempt to connect.
        request_timeout: seconds for one request (opening a producer, describing a topic, …) and its answer.
        reconnect_timeout: seconds that a lost connection is tried to be re-established, before all fails.
        tracing: open an OpenTelemetry span for each call that sends, and let messages carry its context;
            `danubius.tracing` reads it. Needs `pip install 'danubius[tracing]'`.
        busy_poll: stay awake for an answer that is about to come, while one message at a time is sent and awaited.

    Example:
        async with danubius.connect("danube://127.0.0.1:6651") as client: ...

    Raises:
        InvalidArgument: at once, if the URL is not one, or OpenTelemetry is not there to trace with.
        BrokerUnavailable: when awaited or entered, if nobody answers there, at none of the hosts.
    """
    addresses = parse_urls(url)
    options = LinkOptions(
        check_positive("connect_timeout", connect_timeout),
        check_positive("request_timeout", request_timeout),
        check_positive("reconnect_timeout", reconnect_timeout),
        busy_poll,
    )
    kinds = _traced_kinds() if tracing else ProducerKinds(ProducerLane, PartitionedProducer)
    return Opening(partial(_open_client, addresses, options, kinds))


def _traced_kinds() -> ProducerKinds:
    try:
        from danubius.client import tracing
    except ImportError as error:
        raise InvalidArgument(
            f"tracing=True needs OpenTelemetry ({error}): pip install 'danubius[tracing]'"
        ) from error
    return ProducerKinds(tracing.TracedLane, tracing.TracedPartitions)


async def _open_client(
    addresses: Sequence[BrokerAddress], options: LinkOptions, kinds: ProducerKinds
) -> Client:
    connections = Connections(addresses, options)
    await connections.open()
    return Client(connections, kinds)
