"""Simulated worlds, each of one seed; a failing one says how it is repeated. `make prove` runs thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from patience import HANG_S
from proving import sized
from simulation.stories import run_seed

SEEDS: Final = sized(200, 20_000)
CHUNKS: Final = 8
_ROOT: Final = Path(__file__).parents[2]


@pytest.mark.grows
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_world_keeps_its_promises_whatever_goes_wrong(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        run_seed(seed)


def test_a_seed_is_the_same_history_in_every_process() -> None:
    seeds = ["3", "8", "21"]
    traces = [
        subprocess.run(
            [sys.executable, "-m", "simulation", *seeds],
            env={
                **os.environ,
                "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT / 'tests'}",
                "PYTHONHASHSEED": hash_seed,
            },
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0].count("trace") == len(seeds)
    assert traces[0] == traces[1]


def test_another_seed_is_another_history() -> None:
    assert run_seed(1).story != run_seed(2).story
