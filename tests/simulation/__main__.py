"""`python -m simulation SEED...`: the worlds of these seeds, and what happened in them. `make simulate SEED=17` is the same."""

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
        except Exception:
            failed += 1
            traceback.print_exc()
        else:
            print("\n".join(world.story))
        print(f"seed {seed}: trace {trace.digest} of {trace.count} events")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main([int(word) for word in sys.argv[1:]])))
