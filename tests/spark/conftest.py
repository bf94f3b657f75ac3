"""One Spark session and one broker for all tests here; fresh brokers for tests that end theirs.

A session takes seconds to start and holds a gigabyte: everything in this folder runs in one process, on one session.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spark.class_archive import QUICK, java_options

# Of every driver that tests start, here or as a command.
os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK)

from e2e import conftest as brokers
from spark.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


broker = brokers.broker
data_dir = brokers.data_dir
grpc_broker = brokers.grpc_broker
shared_grpc_process = brokers.shared_grpc_process
shared_process = brokers.shared_process
start_broker = brokers.start_broker
topic = brokers.topic


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Local Spark on two cores, as `danubius.spark.session` makes it."""
    from danubius.spark import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = session("tests", master="local[2]")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster of processes: a master and two workers, each with one core for an executor."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
