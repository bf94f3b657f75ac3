"""The scripted broker, and a cluster of three, as fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

from unit.client.scripted_broker import ScriptedBroker, serve  # after its path
from unit.client.scripted_cluster import Cluster, serve_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with serve() as scripted:
        yield scripted


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with serve_cluster(3) as brokers:
        yield brokers
