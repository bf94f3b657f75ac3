"""The gRPC ports of a standalone broker, if the extra `grpc` is installed."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from danubius.app.options import dialable

if TYPE_CHECKING:
    from pathlib import Path

    from danubius.app.options import StandaloneOptions
    from danubius.edge.grpc.edge import GrpcEdge
    from danubius.edge.grpc.front_process import Front
    from danubius.runtime.files import Files
    from danubius.session.door import Door

_NEEDED: Final = ("google.protobuf", "grpc", "grpc_health", "grpc_reflection")

log = logging.getLogger(__name__)


def launch_grpc(options: StandaloneOptions) -> Front | None:
    """Start the process of the gRPC ports; None, and a line in the log, if the extra is not installed.

    It takes a moment to be ready, in which the broker can do something else, and imports grpc, which this one does not.
    """
    if not all(map(_is_installed, _NEEDED)):
        log.info("clients of Danube are not served: pip install 'danubius[grpc]'")
        return None
    from danubius.edge.grpc.front_process import Front

    return Front(options.log_level, options.log_format)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


async def open_grpc(
    front: Front,
    door: Door,
    options: StandaloneOptions,
    folder: Path,
    files: Files,
    http_url: str,
) -> GrpcEdge:
    """Serve clients of Danube; the front is the edge's from here on, also if this fails."""
    from danubius.edge.grpc.admin.services import Addresses, admin_servicers
    from danubius.edge.grpc.edge import GrpcEdge, GrpcOptions

    ports = options.grpc
    assert ports is not None
    host = ports.advertised_host or dialable(options.host)
    grpc_options = GrpcOptions(
        options.host, ports.port, ports.admin_port, ports.advertised_host, ports.connect_url
    )
    edge = GrpcEdge(door, front, grpc_options, folder, files)

    def addresses() -> Addresses:
        return Addresses(
            f"http://{host}:{edge.port}", f"http://{host}:{edge.admin_port}", f"{http_url}/metrics"
        )

    try:
        await edge.open(admin_servicers(door, addresses))
    except BaseException:
        await edge.close()
        raise
    log.info("clients of Danube are served", extra={"port": edge.port, "admin": edge.admin_port})
    return edge
