"""Context: how the plateau of cellular automata grows with the state (A-10), with and without bias.

Source: paper A, section on cellular automata (fact sheet A3): the step at which the loss falls
below 1.3 nats, S = 4 … 512, a batch of a fixed number of tokens. With attention bias it hardly
grows; strength and layers of the paper's bias are not known, so both are searched here at one state
size. Its rows extend the evidence for A-8, which is judged on the linear map.

Reduced, see `CellularAutomataCell`: fewer rules, states and layers, a narrower model, smaller
batches, and S up to 64. A run ends where its plateau ends. With the tokens of a batch fixed, it has
at S = 64 an eighth of the sequences, and so of the rules, that it has at S = 8. Small states are
easier for another reason than their length: they come back to old ones (`repeat_share`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.power_law import PowerLaw, fit_power_law
from emergence_lib.analysis.survival import (
    Estimate,
    capped_mean,
    logrank,
)
from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.cellular_automata_cell import (
    CURVE_SCHEMA,
    CellularAutomataCell,
    run_cell,
)
from emergence_lib.experiments.evidence import steps_in_words, waits_by, with_interval
from emergence_lib.experiments.linear_map_cell import float_tuple, int_tuple, plateau_event
from emergence_lib.tasks import CellularAutomata
from emergence_lib.tasks.base import require_int

PAPER_STEPS = {4: 61, 8: 377, 16: 400, 32: 653, 64: 1387, 128: 3321, 256: 8725}
"""S → mean end of the plateau of 3 seeds, measured off the paper's figure (±2 %); at S = 512 it did
not end in 10,000 steps."""

NO_BIAS = "no bias"

REPEATING = 4
"""State sizes up to this return to old states often enough to be left out of the fit."""


@dataclass(frozen=True)
class ContextGrid(Grid):
    """Several state sizes and bias strengths, several seeds.

    Args:
        state_sizes: S, sizes of a state.
        biases: strengths c of the attention bias, 0 for none.
        biased_layers: how many layers it acts in, from the first; None is all.
        seeds: runs a cell, seeded 0, 1, …
        steps: training steps at most; a run ends with its plateau.
        tokens: of a batch.
        n_rules, n_states, n_layers, d_model, n_heads: see `CellularAutomataCell`.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    state_sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    biases: tuple[float, ...] = (0.0,)
    biased_layers: int | None = 1
    seeds: int = 3
    steps: int = CellularAutomataCell.steps
    tokens: int = CellularAutomataCell.tokens
    n_rules: int | None = CellularAutomataCell.n_rules
    n_states: int = CellularAutomataCell.n_states
    n_layers: int = CellularAutomataCell.n_layers
    d_model: int = CellularAutomataCell.d_model
    n_heads: int = CellularAutomataCell.n_heads

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        object.__setattr__(self, "state_sizes", int_tuple("state_sizes", self.state_sizes, 3, 512))
        object.__setattr__(self, "biases", float_tuple("biases", self.biases))
        for state_size in self.state_sizes:
            for bias in self.biases:
                self.cell(state_size, bias).validate()

    def cell(self, state_size: int, bias: float) -> CellularAutomataCell:
        """The run of one state size and bias."""
        return CellularAutomataCell(
            state_size=state_size,
            attention_bias=bias,
            attention_bias_layers=self.biased_layers if bias else None,
            steps=self.steps,
            tokens=self.tokens,
            n_rules=self.n_rules,
            n_states=self.n_states,
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            eval_every=25,
            stop_after_plateau=True,
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that an interrupted sweep has whole curves over S."""
        return [
            Point("context", 1, self.cell(state_size, bias).params(), seed)
            for seed in range(self.seeds)
            for bias in sorted(self.biases, reverse=True)
            for state_size in self.state_sizes
        ]


def repeat_share(state_size: int, n_states: int) -> float:
    """Share of 4,000 sequences with a state that is an earlier one: from there copying is enough.

    Of rules made up for every sequence, so that no pool's chance enters.
    """
    n_sequences = 4_000
    task = CellularAutomata(state_size=state_size, n_states=n_states, n_rules=None)
    tokens = task.sample(n_sequences, torch.Generator().manual_seed(0)).tokens
    states = tokens.reshape(n_sequences, n_states, state_size)
    same = (states[:, :, None] == states[:, None]).all(-1)
    return float(same.triu(1).flatten(1).any(1).float().mean())


def condition(bias: float, layers: float | None) -> str:
    """A bias in words: "no bias", "c = 4 in 1 layer" or "c = 4 in all layers"."""
    if bias == 0:
        return NO_BIAS
    if layers is None or math.isnan(layers):
        return f"c = {bias:g} in all layers"
    return f"c = {bias:g} in {layers:g} layer{'s' if layers > 1 else ''}"


def conditions(rows: pd.DataFrame) -> pd.Series:
    """The `condition` of every row."""
    pairs = zip(rows.attention_bias, rows.attention_bias_layers, strict=True)
    return pd.Series([condition(*pair) for pair in pairs], index=rows.index, dtype=str)


def by_state_size(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Condition → how long the plateau is at each state size: `waits_by`, x being S."""
    if rows.empty:
        return {}
    return {
        str(name): waits_by(runs, "state_size", plateau_event)
        for name, runs in rows.groupby(conditions(rows))
    }


def exponent(rows: pd.DataFrame) -> PowerLaw | None:
    """The power law of the plateau's length in S > `REPEATING`; None where too little is seen.

    Args:
        rows: of one bias strength.
    """
    rows = rows[rows.state_size > REPEATING]
    events = [plateau_event(row) for _, row in rows.iterrows()]
    try:
        return fit_power_law(rows.state_size.astype(float).tolist(), events)
    except ParameterError:
        return None


def paper_exponent() -> PowerLaw:
    """The power law of the paper's own means, a point a state size above `REPEATING`.

    The state size at which its plateau did not end counts as longer than its 10,000 steps.
    """
    sizes = [size for size in PAPER_STEPS if size > REPEATING]
    ended = [Event(PAPER_STEPS[size], True) for size in sizes]
    return fit_power_law([*sizes, 512], [*ended, Event(10_000, False)])


def exponents(rows: pd.DataFrame) -> pd.DataFrame:
    """The exponents side by side.

    Returns:
        A line a condition whose law is known, the paper's first: columns plateau of, exponent,
        low, high (95 %), runs, ended.
    """
    laws: dict[str, PowerLaw | None] = {"the paper's means, no bias": paper_exponent()}
    if len(rows):
        names = conditions(rows)
        laws |= {f"our runs, {name}": exponent(rows[names == name]) for name in names.unique()}
    return pd.DataFrame(
        [
            {"plateau of": name, **law.exponent._asdict(), "runs": law.n, "ended": law.observed}
            for name, law in laws.items()
            if law is not None
        ]
    ).rename(columns={"value": "exponent"})


def fits(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Condition → steps by its power law at the state sizes that the law rests on."""
    lines = {}
    for name, table in by_state_size(rows).items():
        law = exponent(rows[conditions(rows) == name])
        if law is not None:
            sizes = [size for size in table.x if size > REPEATING]
            lines[name] = pd.Series([law.median(size) for size in sizes], index=sizes)
    return lines


def repeats(state_sizes: Sequence[int]) -> pd.DataFrame:
    """The control of small states: `repeat_share` at 8 and at the paper's 16 states.

    Returns:
        Columns S, share in 8 states, share in 16 states.
    """
    return pd.DataFrame(
        [
            {"S": size, **{f"in {n} states": repeat_share(size, n) for n in (8, 16)}}
            for size in state_sizes
        ]
    )


def judge_longer_context_is_harder(rows: pd.DataFrame) -> Verdict:
    """A-10: the plateau grows with S, and at the largest S it does not end within the run.

    Without bias and for S above `REPEATING`. "reproduced": the whole interval of the exponent above
    0, and fewer than half of the runs leave the plateau at the largest S. "partly": one of the two.
    Three state sizes with two runs each, and plateaus that ended at two of them, are needed.
    """
    plain = rows[(rows.attention_bias == 0) & (rows.state_size > REPEATING)]
    runs = plain.state_size.value_counts()
    law = exponent(plain[plain.state_size.isin(runs[runs >= 2].index)])
    if (runs >= 2).sum() < 3 or law is None:
        need = "Three state sizes with two runs each, and plateaus that end at two, are needed."
        return Verdict("not tested here", need, 0)
    table = by_state_size(plain)[NO_BIAS]
    largest = table.iloc[-1]
    never = largest.observed < largest.n / 2
    longer = law.exponent.low > 0
    status = "reproduced" if longer and never else "partly" if longer or never else "not reproduced"
    ended = f"{largest.observed:.0f} of {largest.n:.0f} plateaus end within the run"
    evidence = (
        f"Without bias the plateau grows as S to the power {with_interval(law.exponent, '.2f')} "
        f"({law.observed} of {law.n} plateaus ended; the others count as at least that long). "
        f"Median length: {_medians_in_words(table, int(plain.steps.max()))}. "
        f"At S = {largest.x} {ended}. "
        f"{bias_sentence(rows)}"
    )
    return Verdict(status, evidence.rstrip(), len(plain))


def _medians_in_words(table: pd.DataFrame, watched: int) -> str:
    """ "S = 8 600 [550, 700] steps, S = 16 …"."""
    return ", ".join(
        f"S = {line.x} {steps_in_words(Estimate(line.median, line.low, line.high), watched)}"
        for line in table.itertuples()
    )


def main_bias(rows: pd.DataFrame) -> str | None:
    """The condition with bias that has most state sizes, of those the one with most runs."""
    biased = rows[rows.attention_bias > 0]
    if biased.empty:
        return None
    sizes = biased.state_size.groupby(conditions(biased)).agg(["nunique", "size"])
    return str(sizes.sort_values(["nunique", "size"]).index[-1])


def bias_sentence(rows: pd.DataFrame) -> str:
    """What the bias does to the plateau at each S and to the exponent; "" where not recorded."""
    main = main_bias(rows)
    if main is None:
        return ""
    parts = []
    for size, cell in rows.groupby("state_size"):
        groups = {
            name: [plateau_event(row) for _, row in cell[conditions(cell) == name].iterrows()]
            for name in (NO_BIAS, main)
        }
        if min(len(events) for events in groups.values()) >= 2:
            ratio = logrank(groups, int(cell.steps.min())).ratios[main]
            parts.append(f"S = {size} {with_interval(ratio, '.2f')}")
    if not parts:
        return ""
    law = exponent(rows[conditions(rows) == main])
    grows = f"; it grows as S to the power {with_interval(law.exponent, '.2f')}" if law else ""
    return (
        f"With attention bias ({main}) the mean plateau is this fraction of that without: "
        f"{', '.join(parts)}{grows}."
    )


def search_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Strengths and layers of the bias at the one state size at which they were searched.

    Returns:
        A line a condition at the size with most of them, shortest plateau first: columns bias, S,
        n, ended (plateaus), median (steps, infinite where not reached), mean (steps as the paper
        counts: a plateau that did not end counts as the steps watched).
    """
    if rows.empty:
        return pd.DataFrame(columns=["bias", "S", "n", "ended", "median", "mean"])
    names = conditions(rows)
    size = names.groupby(rows.state_size).nunique().idxmax()
    lines = []
    for name, table in by_state_size(rows[rows.state_size == size]).items():
        line = table.iloc[0]
        mean = capped_mean(line.events, float(rows.steps.max()))
        lines.append(
            {
                "bias": name,
                "S": size,
                "n": line.n,
                "ended": line.observed,
                "median": line["median"],
                "mean": mean,
            }
        )
    return pd.DataFrame(lines).sort_values("mean", ignore_index=True)


CONTEXT = Experiment(
    name="context",
    version=1,
    question="How does the plateau of cellular automata grow with the state, with and without "
    "attention bias?",
    grid=ContextGrid,
    profiles={
        "smoke": (
            ContextGrid(
                (4, 5), (0.0, 4.0), seeds=1, steps=20, tokens=64, n_states=3, d_model=8, n_heads=2
            ),
        ),
        "quick": (ContextGrid((16,), (0.0, 4.0), seeds=1, steps=600),),
        "cpu": (
            ContextGrid(biases=(0.0, 4.0)),
            ContextGrid((16,), (1.0, 2.0, 8.0), seeds=2),
            ContextGrid((16,), (4.0,), biased_layers=None, seeds=2),
        ),
        "paper": (
            ContextGrid(
                (4, 8, 16, 32, 64, 128, 256, 512),
                (0.0, 4.0),
                steps=10_000,
                tokens=65_536,
                n_rules=256,
                n_states=16,
                n_layers=4,
                d_model=128,
                n_heads=8,
            ),
        ),
    },
    run=run_cell,
    schema=CURVE_SCHEMA,
    judges={"A-10": judge_longer_context_is_harder},
    seconds={"smoke": 1, "quick": 15, "cpu": 50, "paper": 3_600},
)
