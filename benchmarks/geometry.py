"""What RankMe at every checkpoint, task-level and layer adds to the time of training.

    python benchmarks/geometry.py                  # two minutes
    python benchmarks/geometry.py --samples 200    # the paper's number, some of them repeats

Expected: both ranks (uncentred and centred) of 24 task-levels at every layer of the smallest model,
404,992 parameters, at 256 checkpoints, add at most 15 % to the run of the recorded recipe
(`CollapseCell`); the exit status is 1 where they do not. One decomposition a matrix in float64, the
plain way, is timed beside it.

What is added is the observer's time with its taps. The forward pass that it reads is there anyway,
for the accuracy of each task-level; its time is a line of its own. The states are those of training
at four moments, since matrices near rank deficiency take longer. One thread; CPU time of this
process, the best of the repeats, so that neighbours on the machine disturb less.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from emergence_lib.analysis.geometry import RankObserver, sequence_vectors
from emergence_lib.experiments.collapse_cell import CollapseCell
from emergence_lib.models import Transformer
from emergence_lib.tasks import Batch, MultiTask
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.train import step_generator

CHECKPOINTS = 256
MOST = 0.15
LOOKS = (0, 30, 100, 300)


def best(function: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the quickest call, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


class Timer:
    """An observer that times `RankObserver` and the plain way on the states that it is shown."""

    def __init__(self, observer: RankObserver, repeats: int) -> None:
        self.observer, self.repeats, self.taps = observer, repeats, observer.taps
        self.ranks: list[float] = []
        self.plain: list[float] = []
        self.untapped: list[float] = []
        self.tapped: list[float] = []

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Tensor,
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        inputs = batch.tokens[:, :-1]
        timed = {
            "ranks": lambda: self.observer(model, batch, logits, tapped),
            "plain": lambda: one_by_one(batch, tapped),
            "untapped": lambda: model(inputs),
            "tapped": lambda: model(inputs, tap=dict.fromkeys(self.taps)),
        }
        for name, function in timed.items():
            getattr(self, name).append(best(function, self.repeats))
        return {}


def one_by_one(batch: Batch, tapped: Mapping[str, Tensor | None]) -> list[Tensor]:
    """The singular values, plain and centred, of a matrix at a time."""
    values = []
    for resid in tapped.values():
        assert resid is not None
        vectors = sequence_vectors(resid, batch).double()
        for group in batch.labels["task_level"].unique():
            own = vectors[batch.labels["task_level"] == group]
            values += [torch.linalg.svdvals(own), torch.linalg.svdvals(own - own.mean(0))]
    return values


def looked_at(task: MultiTask, samples: int) -> Batch:
    """`samples` sequences of each task-level in its turn, repeats allowed."""
    generator = step_generator(0, "eval")
    batches = [part.sample(samples, generator) for part in task.parts]
    longest = task.seq_len
    tokens = [F.pad(batch.tokens, (0, longest - batch.tokens.shape[1])) for batch in batches]
    counted = [F.pad(b.loss_mask, (0, longest - 1 - b.loss_mask.shape[1])) for b in batches]
    level = torch.arange(len(batches)).repeat_interleave(samples)
    return Batch(torch.cat(tokens), torch.cat(counted), {"task_level": level})


def training_seconds(cell: CollapseCell, repeats: int) -> float:
    """CPU seconds of the recipe's steps, without evaluations, from the time of 20 of them."""
    task, config = cell.task(), cell.model_config()

    def run(steps: int) -> float:
        settings = TrainConfig(
            steps=steps, batch_size=cell.batch_size, muon_lr=cell.muon_lr, eval_batch_size=1
        )
        return best(lambda: train(task, config, settings, evaluations=(steps,)), repeats)

    return (run(30) - run(10)) / 20 * cell.steps


def main() -> int:
    """Print the times and shares; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=CollapseCell.samples, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)

    cell = CollapseCell(samples=options.samples)
    task, config = cell.task(), cell.model_config()
    training = training_seconds(cell, options.repeats)
    timer = Timer(RankObserver("task_level", range(1, config.n_layers + 1)), options.repeats)
    train(
        task,
        config,
        TrainConfig(steps=max(LOOKS), batch_size=cell.batch_size, muon_lr=cell.muon_lr),
        observers=[timer],
        evaluations=LOOKS,
        eval_batch=looked_at(task, options.samples),
    )

    def mean(times: list[float]) -> float:
        return sum(times) / len(times)

    taps = max(0.0, mean(timer.tapped) - mean(timer.untapped))
    added = CHECKPOINTS * (mean(timer.ranks) + taps)
    print(
        f"{cell.size}: {cell.steps} steps of {cell.batch_size}, {len(task.parts)} task-levels of "
        f"{options.samples} samples, {config.n_layers} layers, {CHECKPOINTS} checkpoints; seconds"
    )
    lines = {
        "training steps": training,
        "forward passes at checkpoints (for accuracy)": CHECKPOINTS * mean(timer.untapped),
        "both ranks, in one pass": added,
        "both ranks, one float64 decomposition each": CHECKPOINTS * mean(timer.plain),
    }
    for name, seconds in lines.items():
        print(f"{name:46}{seconds:8.1f}   {seconds / training:6.1%} of the training steps")
    share = added / training
    print(
        f"ranks add {share:.1%}, at most {MOST:.0%} asked: {'met' if share <= MOST else 'missed'}"
    )
    return int(share > MOST)


if __name__ == "__main__":
    sys.exit(main())
