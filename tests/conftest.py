"""What holds for every test: event loop, hypothesis profiles, markers and time limits."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from proving import IS_PROOF

if TYPE_CHECKING:
    from collections.abc import Generator

_TESTS = Path(__file__).parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start what runs in the background so, and all children would be deaf to Ctrl-C, which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "fuzz", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_PROOF_TIMEOUT_S = 4 * 3600
_LINE_CHARACTERS = 200
"""Of a log: as many as say why a test failed."""

_LONG = (
    "test_archive_kills.py",
    "test_cluster.py",
    "test_demo.py",
    "test_pipeline_command.py",
    "test_pipeline_files.py",
    "test_connect.py",
    "test_walk_through.py",
    "test_crash.py",
    "test_live_broker_fuzz.py",
    "test_grpc_attacks.py",
    "test_diskless.py",
    "test_grpc_crash.py",
    "test_storage_server_backends.py",
    "test_object_servers.py",
    "test_upstream_defects.py",
    "test_grpc_streams.py",
    "test_power_loss.py",
    "test_rest_slow_peers.py",
    "test_work_queue_room.py",
    "test_grpc_chaos.py",
    "test_cold_storage.py",
    "test_limits_of_topics.py",
    "test_seeds.py",
)
"""Files with tests that take long, or wait for long: they go first, the longest before the others."""
_SPARK_WARNS = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::UserWarning:pyspark",
)
"""What PySpark leaves open and what it thinks of its own dependencies is not ours to mend."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not sys.stdout.isatty() and config.pluginmanager.hasplugin("terminalreporter"):
        config.get_terminal_writer().fullwidth = _LINE_CHARACTERS


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    if not IS_PROOF:
        proofs = [item for item in items if item.get_closest_marker("prove") is not None]
        config.hook.pytest_deselected(items=proofs)
        items[:] = [item for item in items if item.get_closest_marker("prove") is None]
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        if folder == "e2e":
            item.add_marker(pytest.mark.e2e)
        if folder == "spark":
            item.add_marker(pytest.mark.spark)
            for rule in _SPARK_WARNS:
                item.add_marker(pytest.mark.filterwarnings(rule))
        if IS_PROOF:
            item.add_marker(pytest.mark.timeout(_PROOF_TIMEOUT_S), append=False)
    yield
    # What is left of them now is what runs.
    turns = {name: turn for turn, name in enumerate(_LONG)}
    items.sort(key=lambda item: turns.get(item.path.name, len(turns)))
    if not any(item.get_closest_marker("spark") for item in items):
        items[:] = _dealt(items, sum(item.path.name in turns for item in items))


def _dealt(items: list[pytest.Item], first: int) -> list[pytest.Item]:
    """Each worker begins with its part of the first ones.

    pytest-xdist cuts the list into one piece a worker (`--dist worksteal`): all at the head of the list would be one's.
    Spark's files are handed out one by one, in the order of the list.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    dealt: list[pytest.Item] = []
    at = first
    for worker in range(workers):
        mine = items[worker:first:workers]
        size = (len(items) - len(dealt)) // (workers - worker)
        more = max(0, size - len(mine))
        dealt += [*mine, *items[at : at + more]]
        at += more
    return dealt


def pytest_collection_finish() -> None:
    """Tests that count what is left over collect garbage: six thousand tests and what they import are none."""
    gc.collect()
    gc.freeze()
