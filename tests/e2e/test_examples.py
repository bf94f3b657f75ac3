"""Every file in examples/ and every Python block of docs/concepts/ runs against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.broker_process import environment
from patience import HANG_S

if TYPE_CHECKING:
    from e2e.broker_process import BrokerProcess

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_CONCEPTS = _EXAMPLES.parent / "docs" / "concepts"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LAST_LINES = {
    "many_messages": "their sum is 199990000",
    "produce_and_consume": "received three cakes for table 7",
    "read_history": "second reading: [18.5, 19.0, 21.5]",
    "shared_workers": "did job",
    "without_async": "2 gamma",
}


def test_every_example_is_run() -> None:
    assert sorted(path.stem for path in _EXAMPLES.glob("*.py")) == sorted(_LAST_LINES)


@pytest.mark.parametrize("name", sorted(_LAST_LINES))
def test_example_runs(broker: BrokerProcess, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(_EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment() | {"DANUBIUS_URL": broker.url, "COUNT": "20000"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert _LAST_LINES[name] in done.stdout.splitlines()[-1]
    if name == "shared_workers":
        assert done.stdout.count("did job") >= 30
        assert "did job 7, tries: 2" in done.stdout


def _blocks() -> dict[str, str]:
    return {
        f"{page.stem}-{number}": block
        for page in sorted(_CONCEPTS.glob("*.md"))
        for number, block in enumerate(_BLOCK.findall(page.read_text()), start=1)
    }


@pytest.mark.parametrize("name", sorted(_blocks()))
def test_block_of_a_concept_runs(broker: BrokerProcess, name: str) -> None:
    code = _blocks()[name].replace("danube://127.0.0.1:6651", broker.url)
    code = code.replace("http://127.0.0.1:6652", broker.http_url)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env=environment() | {"DANUBIUS_URL": broker.url},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
