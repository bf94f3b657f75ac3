"""The scripted broker, as a fixture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

from unit.client.scripted_broker import ScriptedBroker, serve  # after its path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with serve() as scripted:
        yield scripted
