"""Settings of the process around a broker: where it is, and what it logs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from danubius.edge.core.hosts import parse_allowed
from danubius.model.setting_marks import Address

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ServerSettings(msgspec.Struct, frozen=True):
    """Where the broker is and where its data are."""

    data_dir: Annotated[str, msgspec.Meta(min_length=1)] = "danubius-data"
    """Where messages are kept; made if it is not there. One broker at a time."""
    host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Port = 6651
    """Port of the native protocol; 0 picks a free one."""
    http_port: Port = 6652
    """Port of HTTP; 0 picks a free one."""
    grpc: bool = True
    """Whether clients of Danube are served, by gRPC; that needs the extra `grpc`."""
    grpc_port: Port = 6650
    """Port of gRPC for producers and consumers; 0 picks a free one."""
    admin_port: Port = 50051
    """Port of gRPC for operators; 0 picks a free one."""
    advertised_host: str = ""
    """The name or address under which gRPC clients reach this broker; empty: the one it listens on."""
    connect_url: Address = ""
    """Of a proxy that gRPC clients come through, for example `http://proxy:6650`; empty: there is none."""
    allowed_hosts: str = ""
    """Names that HTTP answers to beside this machine's own: `broker.example.com,*.example.com`; `*`: any."""

    def check(self) -> None:
        parse_allowed(self.allowed_hosts)


class LogSettings(msgspec.Struct, frozen=True):
    """What is logged, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """How much."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or JSON for log collectors."""
