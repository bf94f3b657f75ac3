"""The worlds of some seeds, told: `python -m simulation 17`, which is `make simulate SEED=17`."""

from __future__ import annotations

import sys
import traceback

from danubius.sim.trace import Trace
from simulation.stories import run_seed


def main(seeds: list[int]) -> int:
    failed = 0
    for seed in seeds:
        trace = Trace()
        try:
            world = run_seed(seed, trace)
        except Exception:  # noqa: BLE001  # told, and the next one is tried
            failed += 1
            traceback.print_exc()
        else:
            sys.stdout.write("\n".join([*world.story, ""]))
        sys.stdout.write(f"seed {seed}: trace {trace.digest} of {trace.count} events\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main([int(word) for word in sys.argv[1:]])))
