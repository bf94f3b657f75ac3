"""The gRPC front of a real broker: killed under load, left alone by its broker, interrupted at a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from danubius.edge.grpc.messages import danube
from e2e.broker_process import environment, free_port
from e2e.danube_process import danube_client
from e2e.raw_grpc import raw_grpc
from patience import HANG_S, LOOK_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess
    from e2e.conftest import StartBroker

KILLS = 3
BURST = 2_500


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=HANG_S) as reply:
        lines = reply.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith(f"{name} ")]
    return float(line.split()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int) -> None:
    limit = time.monotonic() + HANG_S
    while is_alive(pid):
        assert time.monotonic() < limit, f"process {pid} is still there"
        time.sleep(LOOK_S)


def kill_front(broker: BrokerProcess) -> None:
    """Kill it, and wait for the next one."""
    before = broker.health()
    assert before["grpc_is_up"]
    os.kill(before["grpc_front_pid"], signal.SIGKILL)
    limit = time.monotonic() + HANG_S
    while (now := broker.health())["grpc_front_restarts"] == before["grpc_front_restarts"]:
        assert now["status"] == "ok"
        assert time.monotonic() < limit
        time.sleep(LOOK_S)
    assert now["grpc_front_pid"] != before["grpc_front_pid"]


def test_a_front_that_is_killed_under_load_loses_nothing_that_was_acknowledged(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(grpc=True)
    topic = "/default/single"
    with danube_client(broker.grpc_url) as client, danube_client(broker.grpc_url) as reader:
        client.do("open_producer", name="one", topic=topic)
        for name, kind in (("a", "shared"), ("b", "shared"), ("c", "exclusive")):
            reader.do("subscribe", name=name, topic=topic, subscription=kind, kind=kind)
        reader.do("begin_taking", names=["a", "b", "c"])
        client.do("begin_sending", name="one", width=6)
        for _ in range(KILLS):
            client.do("await_sent", name="one", more=20)
            kill_front(broker)
        client.do("await_sent", name="one", more=20)
        sent = client.do("end_sending")
        assert sent["errors"] == []
        assert len(sent["stored"]) >= KILLS * 20
        for names in (["a", "b"], ["c"]):
            left = reader.do("await_taken", names=names, payloads=sent["stored"])
            assert left == {"missing": [], "errors": []}, names
    assert metric(broker, "danubius_grpc_front_up") == 1
    assert metric(broker, "danubius_grpc_front_restarts_total") == KILLS
    assert broker.log().count("the gRPC front died and is started again") == KILLS
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()


def test_a_front_ends_with_its_broker_however_that_ends(start_broker: StartBroker) -> None:
    broker = start_broker(grpc=True)
    with raw_grpc(broker.grpc_port) as raw:
        raw.create("/default/t")
        raw.send("/default/t", b"x")
    for end in (broker.kill, broker.stop):
        pid = broker.health()["grpc_front_pid"]
        assert is_alive(pid)
        end()
        wait_gone(pid)
        broker.start()


def test_calls_that_come_in_a_burst_are_all_answered(grpc_broker: BrokerProcess) -> None:
    request = danube.HealthCheckRequest(client=0, id=1).SerializeToString()
    front = grpc_broker.front_pid
    channel: Any = grpc.insecure_channel(f"127.0.0.1:{grpc_broker.grpc_port}")
    with channel:
        ask = channel.unary_unary("/danube.HealthCheck/HealthCheck")
        ask(request, timeout=HANG_S)
        os.kill(front, signal.SIGSTOP)  # so that it finds all of them at once
        try:
            asked = [ask.future(request, timeout=HANG_S) for _ in range(BURST)]
        finally:
            os.kill(front, signal.SIGCONT)
        assert {one.code() for one in asked} == {grpc.StatusCode.OK}


def test_an_interrupt_at_the_terminal_stops_both_without_a_trace(data_dir: Path) -> None:
    http_port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "danubius", "standalone", "--data-dir", str(data_dir), "--port", "0",
         "--http-port", str(http_port), "--set", "server.grpc=true", "--grpc-port", "0",
         "--admin-port", "0"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("danubius ready")
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/health", timeout=HANG_S) as page:
            facts = json.loads(page.read())
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to everyone
        _, log = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in log
    assert "died" not in log
    wait_gone(facts["grpc_front_pid"])
