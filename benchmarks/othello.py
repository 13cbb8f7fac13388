"""Random games of Othello a second, on one core.

    python benchmarks/othello.py               # some seconds

Expected: at least 10,000 games of 8 × 8 a second; the exit status is 1 where it is less. A game is
sampled with its labels (the boards it passes through and their legal moves), as training gets it.
Times are CPU time of this process, so that neighbours on the machine disturb less; one draw warms
up, the best of three counts.
"""

from __future__ import annotations

import sys
import time

import torch

from emergence_lib.tasks import Othello
from emergence_lib.tasks.othello_board import SIZES

LEAST = 10_000
BATCHES = (128, 1_024, 4_096)


def games_a_second(size: int, batch_size: int) -> float:
    """The best of three draws of a batch."""
    task, generator = Othello(size), torch.Generator().manual_seed(0)
    task.sample(batch_size, generator)
    best = 0.0
    for _ in range(3):
        begun = time.process_time()
        task.sample(batch_size, generator)
        best = max(best, batch_size / (time.process_time() - begun))
    return best


def main() -> int:
    """Print the table; 1 where 8 × 8 is too slow."""
    torch.set_num_threads(1)
    print(f"{'board':>6} {'batch':>6} {'games a second':>15}")
    found = {}
    for size in SIZES:
        for batch_size in BATCHES:
            found[size, batch_size] = games_a_second(size, batch_size)
            print(f"{size} × {size} {batch_size:>7,} {found[size, batch_size]:>15,.0f}")
    return int(found[8, 1_024] < LEAST)


if __name__ == "__main__":
    sys.exit(main())
