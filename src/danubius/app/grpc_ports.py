"""The gRPC ports of a standalone broker, if the extra `grpc` is installed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from danubius.app.options import dialable

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.app.options import StandaloneOptions
    from danubius.broker.node import Node
    from danubius.edge.grpc.edge import GrpcEdge
    from danubius.runtime.files import Files

log = logging.getLogger(__name__)


async def open_grpc(
    node: Node, options: StandaloneOptions, folder: Path, files: Files, http_url: str
) -> GrpcEdge | None:
    """Serve clients of Danube; None, and a line in the log, if the extra is not installed."""
    ports = options.grpc
    assert ports is not None
    try:
        from danubius.edge.grpc.admin import Addresses, admin_servicers
        from danubius.edge.grpc.edge import GrpcEdge, GrpcOptions
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("danubius"):
            raise
        log.info("clients of Danube are not served: pip install 'danubius[grpc]'")
        return None
    host = ports.advertised_host or dialable(options.host)
    grpc_options = GrpcOptions(
        options.host, ports.port, ports.admin_port, ports.advertised_host, ports.connect_url
    )
    edge = GrpcEdge(node, grpc_options, folder, files)

    def addresses() -> Addresses:
        return Addresses(
            f"http://{host}:{edge.port}", f"http://{host}:{edge.admin_port}", f"{http_url}/metrics"
        )

    try:
        await edge.open(admin_servicers(node, addresses))
    except BaseException:
        await edge.close()
        raise
    log.info("clients of Danube are served", extra={"port": edge.port, "admin": edge.admin_port})
    return edge
