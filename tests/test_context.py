"""The context experiment: its grid, its measures and the verdict on made-up rows."""

from __future__ import annotations

import re
from itertools import chain

import pandas as pd
import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.experiments import context
from emergence_lib.experiments.context import CONTEXT, ContextGrid, judge_longer_context_is_harder

torch.set_num_threads(1)


def rows(ends, bias=0.0, layers=None, steps=4_000):
    """Runs of one condition: state size → steps at which the plateaus ended, None where not."""
    return [
        {
            "state_size": size,
            "attention_bias": bias,
            "attention_bias_layers": layers,
            "seed": seed,
            "steps": steps,
            "plateau_end": end,
            "stopped_at": steps if end is None else end + 25,
        }
        for size, of_size in ends.items()
        for seed, end in enumerate(of_size)
    ]


LINEAR = {8: [400, 500, 450], 16: [900, 800, 1_000], 32: [1_700, 2_000, 1_800]}
FLAT = {8: [400, 500, 450], 16: [450, 400, 520], 32: [420, 480, 460], 64: [450, 410, 500]}
NEVER = {64: [None, None, None]}


def judged(*groups):
    verdict = judge_longer_context_is_harder(pd.DataFrame([*chain(*groups)]))
    assert not re.search(r"\bnan\b|\binf\b|None|  ", verdict.evidence)
    return verdict


def test_a_plateau_that_grows_until_it_does_not_end_reproduces_the_claim():
    verdict = judged(rows(LINEAR | NEVER))
    assert (verdict.status, verdict.n) == ("reproduced", 12)
    assert "(9 of 12 plateaus ended" in verdict.evidence
    assert "S = 64 not within the 4,000 steps watched" in verdict.evidence
    assert "At S = 64 0 of 3 plateaus end within the run" in verdict.evidence
    power = float(re.search(r"power (\S+) \[", verdict.evidence).group(1))
    assert 0.9 < power < 1.3


def test_growth_alone_or_a_wall_alone_is_partly():
    assert judged(rows(LINEAR)).status == "partly"
    wall = {8: [400, 500, 450], 16: [450, 400, 520], 32: [440, 450, 460], 64: [None, None, 430]}
    shrinking = {8: [2_000, 2_200, 1_900], 16: [900, 950, 980], 32: [410, 400, 450]}
    assert judged(rows(wall)).status == "partly"
    assert judged(rows(shrinking | NEVER)).status == "partly"


def test_a_flat_plateau_that_ends_everywhere_does_not_reproduce_it():
    assert judged(rows(FLAT)).status == "not reproduced"


def test_the_repeating_states_do_not_count():
    """S = 4 alone makes the difference here."""
    assert judged(rows(FLAT | {4: [10, 12, 11]})).status == "not reproduced"


@pytest.mark.parametrize(
    "ends",
    [
        {8: [400, 500], 16: [900, 800]},
        {8: [400], 16: [900], 32: [1_700]},
        {8: [400, 500], 16: [None, None], 32: [None, None]},
        {4: [40, 50], 8: [400, 500], 16: [900, 800]},
    ],
    ids=["two sizes", "one run each", "ended at one size", "the repeating size"],
)
def test_too_little_is_no_test(ends):
    verdict = judged(rows(ends))
    assert (verdict.status, verdict.n) == ("not tested here", 0)


def test_bias_is_compared_at_every_size_and_searched_at_one():
    biased = {8: [100, 110, 120], 16: [110, 100, 120], 32: [110, 120, 130], 64: [100, 130, 120]}
    every = rows(LINEAR | NEVER) + rows(biased, 4.0, 1)
    every += rows({16: [300, 320]}, 1.0, 1) + rows({16: [500, 520]}, 4.0, None)
    text = judged(every).evidence
    assert "(c = 4 in 1 layer)" in text
    # 110 against 450, 110 against 900, 120 against 1,833.
    for part in ("S = 8 0.24 [", "S = 16 0.12 [", "S = 32 0.07 ["):
        assert part in text
    assert re.search(r"it grows as S to the power 0\.\d\d \[", text)
    table = context.search_table(pd.DataFrame(every))
    assert set(table.S) == {16}
    assert table.bias.tolist() == [
        "c = 4 in 1 layer",
        "c = 1 in 1 layer",
        "c = 4 in all layers",
        "no bias",
    ]


def test_the_search_counts_censored_runs_as_the_paper_does():
    table = context.search_table(pd.DataFrame(rows({8: [400, 600, None]}))).iloc[0]
    assert (table.n, table.ended, table["median"]) == (3, 2, 600)
    assert table["mean"] == pytest.approx((400 + 600 + 4_000) / 3)
    assert context.search_table(pd.DataFrame()).empty
    assert context.by_state_size(pd.DataFrame()) == {}


def test_small_states_repeat():
    """Of 4^4 states a random map's orbit closes early; of 4^16 it does not in 8 steps."""
    assert context.repeat_share(4, 8) > 0.2
    assert context.repeat_share(16, 8) < 0.02
    # Two cells, two states: unequal cells look up two entries, equal ones (1/4) the same one.
    exact = 3 / 4 * 1 / 16 + 1 / 4 * 1 / 4
    assert context.repeat_share(2, 2) == pytest.approx(exact, abs=0.02)


def test_exponents_stand_beside_the_papers():
    table = context.exponents(pd.DataFrame(rows(LINEAR | NEVER) + rows({16: [300]}, 1.0, 1)))
    assert table["plateau of"].tolist() == ["the paper's means, no bias", "our runs, no bias"]
    # From S = 8 to 256 the paper's plateau grows 23-fold: a power of ln 23 / ln 32 = 0.9.
    assert table.exponent[0] == pytest.approx(0.95, abs=0.1)
    assert table.runs.tolist() == [7, 12]
    assert (table.low < table.exponent).all()
    assert len(context.exponents(pd.DataFrame())) == 1
    line = context.fits(pd.DataFrame(rows(LINEAR | {4: [50]})))["no bias"]
    assert line.index.tolist() == [8, 16, 32]
    assert line[16] == pytest.approx(900, rel=0.1)
    assert context.repeats((4, 16)).S.tolist() == [4, 16]


def test_the_grid_refuses_what_cannot_run_and_biases_what_it_says():
    with pytest.raises(ParameterError, match="tokens"):
        ContextGrid((64,), tokens=100)
    with pytest.raises(ParameterError, match="state_sizes"):
        ContextGrid((2,))
    plain, biased = (ContextGrid((8,), (0.0, 4.0)).cell(8, c) for c in (0.0, 4.0))
    assert (plain.attention_bias_layers, biased.attention_bias_layers) == (None, 1)
    assert plain.stop_after_plateau
    seeds = [point.seed for point in CONTEXT.points("cpu")]
    assert seeds.index(1) > seeds.index(0)


def test_the_recorded_points_keep_their_keys():
    """A changed key orphans the recorded points: see the same test of the other experiments."""
    points = CONTEXT.points("cpu")
    assert (points[0].key, points[-1].key) == ("3a8cc038b5b3bb99", "9563c8ddf6b751df")


def test_smoke_rows_have_the_schema():
    for point in CONTEXT.points("smoke"):
        CONTEXT.check_row(CONTEXT.run(point, "cpu"))
