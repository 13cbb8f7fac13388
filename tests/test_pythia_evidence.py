"""Emergence tables and verdicts A-1 to A-4 on made-up runs whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from emergence_lib.analysis.emergence import Event
from emergence_lib.errors import ParameterError
from emergence_lib.experiments import pythia_evidence as evidence
from emergence_lib.experiments.emergence_story import emergence_in_words
from emergence_lib.models.pythia import STEPS
from emergence_lib.tasks.prompts import CAPABILITIES
from emergence_lib.training import scaled_pythia_schedule

STEPS_HERE = scaled_pythia_schedule(1430)
WIDTH = 10.0


def sigmoid(steps, centre, width):
    return expit((np.asarray(steps, float) - centre) / width)


def make_run(size, seed, at, width=WIDTH, head_at=None, steps=STEPS_HERE, source="pocket"):
    """A run that acquires everything at `at` (inf: nothing); a head rises at `head_at`."""
    p = 0.8 * sigmoid(steps, at, width) if math.isfinite(at) else np.zeros(len(steps))
    head = sigmoid(steps, at if head_at is None else head_at, WIDTH)
    head = head if np.isfinite(head).all() and math.isfinite(at) else np.zeros(len(steps))
    row = {
        "source": source,
        "size": size,
        "seed": seed,
        "eval_steps": list(steps),
        "loss": list(5 - np.asarray(steps) / 1430),  # the same for every seed
        "induction": [[0.01, value] for value in head],
        "previous_token": [[0.2, 0.1]] * len(steps),
    }
    for name in CAPABILITIES:
        row |= {
            f"p_{name}": list(p),
            f"solved_{name}": list((p >= 0.4).astype(float)),
            f"control_solved_{name}": [0.0] * len(steps),
            f"single_rank_{name}": list(np.where(p >= 0.4, 0, 7)),
        }
    return row


def make_rows(times, **settings):
    """size → times of its seeds."""
    return pd.DataFrame(
        [make_run(s, i, t, **settings) for s, ts in times.items() for i, t in enumerate(ts)]
    )


def test_the_table_by_hand():
    table = evidence.emergence_table(make_rows({"98k": [704, math.inf]}), "many")
    assert len(table) == 2 * len(CAPABILITIES)
    got = table[(table.seed == 0) & (table.capability == "ioi")].iloc[0]
    assert (got.step, got.bisected, got.observed, got.reversals) == (705, 705, True, 0)
    assert got.horizon == 1430
    never = table[table.seed == 1].iloc[0]
    assert (never.step, never.observed, never.bisected_observed) == (1430, False, False)
    assert evidence.events(table[table.seed == 1])[:1] == [Event(1430, False)]


def test_reversals_are_counted_and_bisection_may_miss_the_first():
    row = make_run("98k", 0, 1300)
    solved = row["solved_ioi"]
    solved[20] = 1.0  # a lucky early checkpoint
    table = evidence.emergence_table(pd.DataFrame([row]), "many").set_index("capability")
    assert table.loc["ioi", "reversals"] == 1
    assert table.loc["ioi", "step"] < 200
    assert table.loc["ioi", "bisected"] == pytest.approx(1300, abs=10)
    assert table.loc["string_repetition", "reversals"] == 0


def test_single_and_many_prompts_are_different_criteria():
    row = make_run("98k", 0, 700)
    row["single_rank_ioi"] = [7] * len(STEPS_HERE)
    for prompts, seen in (("many", True), ("single", False)):
        table = evidence.emergence_table(pd.DataFrame([row]), prompts).set_index("capability")
        assert table.loc["ioi", "observed"] == seen


def test_a_hub_row_holds_only_what_bisection_looked_at():
    full = {step: step >= 60_000 for step in STEPS}
    looked = set()

    def solved(step):
        looked.add(step)
        return full[step]

    expected = evidence.emergence_point(solved, STEPS)
    row = make_run("14m", 0, 59_500, width=1, steps=sorted(looked), source="hub")
    table = evidence.emergence_table(pd.DataFrame([row]), "many")
    assert (table.step == expected.midpoint).all()
    assert table.reversals.isna().all()
    assert (table.horizon == 143_000).all()


def test_the_solve_table_by_hand():
    table = evidence.solve_table(make_rows({"98k": [300, 600, math.inf, math.inf]}))
    line = table[table.capability == "ioi"].iloc[0]
    assert (line.n, line.solved, line.single, line.reversals) == (4, 0.5, 0.5, 0)
    assert line.low == pytest.approx(0.0676, abs=1e-4)  # Clopper–Pearson, 2 of 4
    assert line.bisection_error == 0


def test_guessing_among_two_names_is_no_capability():
    row = make_run("98k", 0, 700)
    row["solved_ioi"] = [0.5 if solved else 0.0 for solved in row["solved_ioi"]]
    row["control_solved_ioi"] = row["solved_ioi"]
    table = evidence.emergence_table(pd.DataFrame([row]), "many").set_index("capability")
    assert not table.loc["ioi", "observed"]
    row["solved_ioi"] = [1.5 * solved for solved in row["solved_ioi"]]  # .75: half-way from .5 to 1
    table = evidence.emergence_table(pd.DataFrame([row]), "many").set_index("capability")
    assert table.loc["ioi", "observed"]


def test_a_run_that_is_not_recorded_is_named_with_those_that_are():
    rows = make_rows({"98k": [300, 600]})
    assert evidence.one_run(rows, "98k", 1).seed.tolist() == [1]
    with pytest.raises(ParameterError, match=r"seeds=2 .*'98k': \[0, 1\]"):
        evidence.one_run(rows, "98k", 2)


def test_an_emergence_is_told_with_its_numbers():
    told = emergence_in_words(make_rows({"98k": [704]}), "ioi")
    assert "emerges at step 705 of 1430" in told  # between the checkpoints 700 and 710
    assert "0.32 at the checkpoint before, 0.52 at the one after and 0.80 at the end" in told
    assert "The induction score of the best head is half-way up at step 710." in told
    assert "The previous-token score of the best head rises by less than 0.1." in told
    assert "does not emerge within 1430 steps" in emergence_in_words(
        make_rows({"98k": [math.inf]}), "ioi"
    )


def test_spread_is_the_interquartile_range_over_the_median():
    lines = pd.DataFrame({"step": [100.0, 200, 300, 400, 500], "observed": True})
    assert evidence.spread(lines) == pytest.approx((400 - 200) / 300)
    lines.loc[3:, "observed"] = False
    assert evidence.spread(lines) == math.inf


@pytest.mark.parametrize(
    ("times", "status"),
    [
        ([300, 500, 700, 900, 1100], "reproduced"),
        ([700, 700, 710, 710, 720], "not reproduced"),
        ([700, 700, 700, math.inf, math.inf], "reproduced"),
        ([700, 900], "not tested here"),
        ([math.inf] * 5, "not tested here"),
    ],
)
def test_random_emergence_needs_a_spread(times, status):
    verdict = evidence.judge_random(make_rows({"98k": times}))
    assert verdict.status == status
    assert "real Pythia is not tested here" in verdict.evidence


def test_the_loss_control_sees_that_equal_losses_have_no_spread():
    rows = make_rows({"98k": [300, 500, 700, 900, 1100]})
    lines = evidence.emergence_table(rows, "many")
    assert evidence.loss_spread(rows, lines[lines.capability == "ioi"]) == 0


@pytest.mark.parametrize(
    ("small", "large", "status"),
    [
        ([900, 1000, 1100, 950], [300, 400, 500, 350], "reproduced"),
        ([300, 400, 500, 350], [900, 1000, 1100, 950], "not reproduced"),
        ([500, 600, 700, 650], [510, 590, 690, 660], "not reproduced"),
        ([math.inf] * 4, [300, 400, 500, 350], "reproduced"),
        ([math.inf] * 4, [math.inf] * 4, "not tested here"),
    ],
)
def test_larger_is_earlier_only_if_it_is(small, large, status):
    verdict = evidence.judge_larger_earlier(make_rows({"98k": small, "1.2m": large}))
    assert verdict.status == status


def test_one_size_says_nothing_about_sizes():
    assert evidence.judge_larger_earlier(make_rows({"98k": [1, 2, 3]})).status == "not tested here"


def test_rise_share_of_a_jump_of_a_line_and_of_nothing():
    steps = np.arange(0, 1001, 10)
    jump = pd.Series((steps > 500) * 0.8, index=steps)
    line = pd.Series(steps / 1000, index=steps)
    assert evidence.rise_share(jump) == 1
    assert evidence.rise_share(line) == pytest.approx(0.05 / 0.98, rel=0.02)
    assert evidence.rise_share(line * 0.1) is None
    # A logistic rise: the best window of 5 % = 50 steps covers tanh(50 / 4 scale) of it.
    logistic = pd.Series(sigmoid(steps, 505, 20), index=steps)
    assert evidence.rise_share(logistic) == pytest.approx(math.tanh(50 / 80), abs=0.01)


@pytest.mark.parametrize(
    ("width", "status"), [(5, "reproduced"), (50, "partly"), (200, "not reproduced")]
)
def test_abrupt_is_a_matter_of_width(width, status):
    rows = make_rows({"98k": [650, 690, 700, 710, 750]}, width=width)
    assert evidence.judge_abrupt(rows).status == status


def test_attention_coincides_only_in_the_same_run():
    times = {"98k": [300, 500, 700, 900, 1100]}
    same = make_rows(times)
    assert evidence.judge_attention(same).status == "reproduced"
    shifted = pd.DataFrame(  # every head rises with the next seed's emergence
        [
            make_run("98k", i, t, head_at=times["98k"][(i + 1) % 5])
            for i, t in enumerate(times["98k"])
        ]
    )
    gaps = evidence.head_gaps(shifted, "string_repetition", "induction")
    assert (gaps.gap > 0.1).all()
    assert evidence.judge_attention(shifted).status == "partly"  # it rises, but not then
    flat = same.assign(induction=[[[0.01, 0.02]] * len(STEPS_HERE)] * 5)
    assert evidence.judge_attention(flat).status == "not reproduced"  # acquired without such heads
    assert evidence.judge_attention(flat[:4]).status == "not tested here"


def test_a_hub_verdict_names_its_models():
    rows = make_rows({"14m": [1000] * 5}, steps=STEPS, source="hub")
    assert "PolyPythias" in evidence.judge_random(rows).evidence
