"""A broker that others can reach, over the network or on its disk, says so; and it listens nowhere else."""

from __future__ import annotations

import socket
import stat
from typing import TYPE_CHECKING

import pytest

from e2e.broker_process import BrokerProcess
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path


def test_a_broker_on_all_addresses_of_ipv4_says_so_and_is_on_no_other(tmp_path: Path) -> None:
    shared = tmp_path / "data"
    shared.mkdir()
    shared.chmod(0o755)
    broker = BrokerProcess(shared, ("--host", "0.0.0.0"), grpc=True).start()
    try:
        log = broker.log()
        assert "this broker is open to the network host=0.0.0.0" in log
        assert "chmod go=" in log
        assert "nobody is asked" in broker.health()["exposed"]
        for port in (broker.port, broker.http_port, broker.grpc_port, broker.admin_port):
            socket.create_connection(("127.0.0.1", port), timeout=HANG_S).close()
            with pytest.raises(OSError, match=r"refused|unreachable|not available"):
                socket.create_connection(("::1", port), timeout=HANG_S)
    finally:
        broker.stop()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    assert {stat.S_IMODE(each.stat().st_mode) for each in shared.rglob("*")} == {0o600, 0o700}


def test_a_broker_on_loopback_says_nothing(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        assert "network" not in broker.log()
        assert "exposed" not in broker.health()
    finally:
        broker.stop()
