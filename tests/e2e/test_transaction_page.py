"""Every example of the page about transactions runs against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import danubius
from e2e.broker_process import environment
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.conftest import StartBroker

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "transactions.md"
_EXAMPLES = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("number", "topic", "payloads"),
    [
        (0, "/default/invoices", [b"12.50", b"tip 1.50"]),
        (1, "/default/shouts", [b"ONE", b"TWO", b"THREE"]),
    ],
)
def test_example_runs(
    start_broker: StartBroker, number: int, topic: str, payloads: list[bytes]
) -> None:
    broker = start_broker()  # of its own: these topics are not this test's alone
    program = _EXAMPLES[number].replace("danube://127.0.0.1:6651", broker.url)
    assert broker.url in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with (
        danubius.blocking.connect(broker.url) as client,
        client.reader(topic, stop_at_end=True) as reader,
    ):
        assert [message.payload for message in reader] == payloads


def test_all_examples_are_run() -> None:
    assert len(_EXAMPLES) == 2
