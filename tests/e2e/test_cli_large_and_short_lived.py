"""`danubius produce` with pieces and with a time to live."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import danubius.blocking
from e2e.broker_process import run_command
from patience import HANG_S

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.broker_process import BrokerProcess


def test_a_large_file_is_one_message(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "film"
    path.write_bytes(hashlib.shake_128(b"film").digest(9 * 1024 * 1024))
    refused = run_command("produce", topic, "--file", str(path), "--url", broker.url)
    assert refused.code != 0
    assert "the broker accepts" in refused.stderr
    done = run_command(
        "produce",
        topic,
        "--file",
        str(path),
        "--chunk-bytes",
        "4MiB",
        "--json",
        "--url",
        broker.url,
    )
    assert done.code == 0, done.stderr
    with (
        danubius.blocking.connect(broker.url) as client,
        client.reader(topic, start="earliest", stop_at_end=True) as reader,
    ):
        assert [message.payload for message in reader] == [path.read_bytes()]


def test_messages_with_a_time_to_live(broker: BrokerProcess, topic: str) -> None:
    with danubius.blocking.connect(broker.url) as client:
        client.create_topic(topic)
        with client.consumer(topic, subscription="s"):
            pass
        for arguments in (("-m", "short", "--ttl", "1ms"), ("-m", "long", "--ttl", "1h")):
            done = run_command("produce", topic, *arguments, "--url", broker.url)
            assert done.code == 0, done.stderr
        with client.consumer(topic, subscription="s") as consumer:
            assert consumer.receive(timeout=HANG_S).payload == b"long"


def test_what_does_not_go_together_is_refused(topic: str) -> None:
    done = run_command("produce", topic, "-m", "a", "--non-reliable", "--chunk-bytes", "4KiB")
    assert (done.code, "pieces" in done.stderr) == (2, True)
    done = run_command(
        "produce", topic, "-m", "a", "--name", "n", "--resume", "--chunk-bytes", "4KiB"
    )
    assert (done.code, "--chunk-bytes" in done.stderr) == (2, True)
