"""The examples on the page about positions run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.broker_process import environment

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

CONCEPTS = Path(__file__).resolve().parents[2] / "docs" / "concepts"
PAGES = ("positions",)
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in PAGES
    for number, example in enumerate(
        re.findall(
            r"^```python\n(.*?)^```",
            (CONCEPTS / f"{page}.md").read_text(),
            re.MULTILINE | re.DOTALL,
        )
    )
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(broker: BrokerProcess, example: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=example.replace("danube://127.0.0.1:6651", broker.url),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
