"""Public Pythia branches that are not what their name says, and how to find more of them.

    branch                                     what it serves                      reported in
    pythia-2.8b      step0 … step65000, …      the end of training (86 of 154)     pythia#205
    pythia-12b       step50000, step58000      a third of step143000               pythia#206
    pythia-410m-seed2, 6, 9   one step each    nothing                             pythia#202
    pythia-160m-weight-seed1, 2   step1 …      not the run of their step0          pythia#203
    every run        step1, step2              step0                               gpt-neox#1373

A branch that serves the weights of another step shows when both are loaded: their digests are
equal. That is how `find_duplicates` sees what is in no table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Checkpoint = tuple[str, str]
"""Repository and revision: ``("EleutherAI/pythia-14m", "step1000")``."""


@dataclass(frozen=True)
class Fault:
    """Public branches that are not what their name says.

    Attributes:
        repository, steps: the branches.
        kind: "wrong": other weights than the name says, so `pythia.load` refuses; "missing": no
            weights when it was reported; "doubtful": may be right. In the last two cases it warns.
        issue: where it was reported, as ``owner/repository#number`` on GitHub.
        finding: what is wrong; follows the name of a branch in a message.
    """

    repository: str
    steps: frozenset[int]
    kind: Literal["wrong", "missing", "doubtful"]
    issue: str
    finding: str


@dataclass(frozen=True)
class Duplicates:
    """Groups of checkpoints with the same weights.

    Attributes:
        expected: of one run and within `EXPECTED_EQUAL`: one measurement, not several.
        unexpected: all others. At least one branch of each group serves wrong weights.
    """

    expected: tuple[tuple[Checkpoint, ...], ...]
    unexpected: tuple[tuple[Checkpoint, ...], ...]


EXPECTED_EQUAL = frozenset({"step0", "step1", "step2"})
"""Checkpoints of one run that may hold the same weights: the warm-up starts at learning rate 0, so
step 1 is step 0 (gpt-neox#1373, pythia#83); step 2 is reported equal too (pythia#198)."""

_FIRST_STEPS = tuple(2**i for i in range(10))

KNOWN_BAD = (
    Fault(
        "EleutherAI/pythia-2.8b",
        frozenset({0, *_FIRST_STEPS, *range(1_000, 65_001, 1_000), 70_000, 80_000, 90_000})
        | frozenset({100_000, 103_000, 110_000, 120_000, 130_000, 140_000}),
        "wrong",
        "EleutherAI/pythia#205",
        "serves weights of the end of training",
    ),
    Fault(
        "EleutherAI/pythia-2.8b",
        frozenset({143_000}),
        "doubtful",
        "EleutherAI/pythia#205",
        "shares its file with nine earlier branches, while main has another with its embeddings",
    ),
    Fault(
        "EleutherAI/pythia-12b",
        frozenset({50_000, 58_000}),
        "wrong",
        "EleutherAI/pythia#206",
        "serves the first of its three files from step 143000",
    ),
    *(
        Fault(
            f"EleutherAI/pythia-410m-seed{seed}",
            frozenset({step}),
            "missing",
            "EleutherAI/pythia#202",
            "was reported to hold no weights",
        )
        for seed, step in ((2, 111_000), (6, 88_000), (9, 40_000))
    ),
    *(
        Fault(
            f"EleutherAI/pythia-160m-weight-seed{seed}",
            frozenset({*_FIRST_STEPS, *range(1_000, 143_001, 1_000)}),
            "wrong",
            "EleutherAI/pythia#203",
            "does not continue from its own step0 but from that of the data-seed runs",
        )
        for seed in (1, 2)
    ),
)
"""What was reported in public by September 2026. Of the 86 branches of pythia-2.8b that share two
files 85 are refused: the 86th is the last step, which may be right. The weight-seed repositories
hold no run that `pythia.repository` names; they are here for who fetches them by hand."""


def known_fault(repository: str, step: int) -> Fault | None:
    """What is publicly known to be wrong with a branch, if anything."""
    for fault in KNOWN_BAD:
        if fault.repository == repository and step in fault.steps:
            return fault
    return None


def find_duplicates(digests: Mapping[Checkpoint, str]) -> Duplicates:
    """Which of these checkpoints hold the same weights.

    Args:
        digests: checkpoint → digest of its weights (`hub.digest`).
    """
    groups: dict[str, list[Checkpoint]] = defaultdict(list)
    for checkpoint, digest in sorted(digests.items()):
        groups[digest].append(checkpoint)
    expected: list[tuple[Checkpoint, ...]] = []
    unexpected: list[tuple[Checkpoint, ...]] = []
    for group in groups.values():
        one_run = len({repository for repository, _ in group}) == 1
        harmless = one_run and EXPECTED_EQUAL.issuperset(revision for _, revision in group)
        if len(group) > 1:
            (expected if harmless else unexpected).append(tuple(group))
    return Duplicates(tuple(expected), tuple(unexpected))
