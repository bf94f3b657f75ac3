"""Brokers for the end-to-end tests: one that many tests share, and fresh ones for tests that kill theirs."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.broker_process import STARTED, BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_numbers = itertools.count()


class StartBroker(Protocol):
    """Starts a broker that the test owns; it is killed at the test's end if it still runs."""

    def __call__(
        self, *options: str, data_dir: Path | None = None, grpc: bool = False
    ) -> BrokerProcess: ...


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for broker in STARTED:
            state = "running" if broker.is_running else f"ended with {broker.exit_code}"
            title = f"log of the broker at {broker.url} ({state})"
            report.sections.append((title, broker.log_tail()))
    return report


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty directory on the real disk, gone after the test."""
    path = Path(tempfile.mkdtemp(prefix="danubius-e2e-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_process() -> Iterator[BrokerProcess]:
    path = Path(tempfile.mkdtemp(prefix="danubius-e2e-"))
    process = BrokerProcess(path).start()
    yield process
    code = process.stop() if process.is_running else process.exit_code
    log = process.log()
    STARTED.remove(process)
    shutil.rmtree(path, ignore_errors=True)
    assert code == 0, f"the shared broker ended with {code}:\n{process.log_tail()}"
    assert "Traceback (most recent call last)" not in log, log


@pytest.fixture
def broker(shared_process: BrokerProcess) -> Iterator[BrokerProcess]:
    """The shared broker; the test may not stop it, and must leave it running."""
    if not shared_process.is_running:
        shared_process.start()  # An earlier test ended it, and failed for that; the others go on.
    yield shared_process
    assert shared_process.is_running, "this test ended the shared broker"


@pytest.fixture(scope="session")
def shared_grpc_process() -> Iterator[BrokerProcess]:
    path = Path(tempfile.mkdtemp(prefix="danubius-e2e-"))
    process = BrokerProcess(path, grpc=True).start()
    yield process
    code = process.stop() if process.is_running else process.exit_code
    log = process.log()
    STARTED.remove(process)
    shutil.rmtree(path, ignore_errors=True)
    assert code == 0, f"the shared broker ended with {code}:\n{process.log_tail()}"
    assert "Traceback (most recent call last)" not in log, log


@pytest.fixture
def grpc_broker(shared_grpc_process: BrokerProcess) -> Iterator[BrokerProcess]:
    """The shared broker that serves clients of Danube too; the test must leave it running."""
    if not shared_grpc_process.is_running:
        shared_grpc_process.start()
    yield shared_grpc_process
    assert shared_grpc_process.is_running, "this test ended the shared broker"


@pytest.fixture
def start_broker(data_dir: Path) -> Iterator[StartBroker]:
    started: list[BrokerProcess] = []

    own_dir = data_dir

    def start(*options: str, data_dir: Path | None = None, grpc: bool = False) -> BrokerProcess:
        process = BrokerProcess(data_dir or own_dir, options, grpc=grpc)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.kill()
        STARTED.remove(process)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own."""
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:120].strip("-")
    return f"/default/{word}-{next(_numbers)}"
