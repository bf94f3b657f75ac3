"""The fuzz tests use the end-to-end tests' brokers and their fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.conftest import data_dir, pytest_runtest_makereport, start_broker, topic

__all__ = ["data_dir", "pytest_runtest_makereport", "start_broker", "topic"]
