"""The experiment `attention_patching`: where it brackets an emergence, and verdicts A-5 and A-6."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import attention_patching as experiment
from emergence_lib.experiments.attention_patching import (
    ATTENTION_PATCHING,
    Bracket,
    PatchingGrid,
    bracket,
    curves,
    prompts_of,
)
from emergence_lib.experiments.patching_evidence import (
    at_share,
    judge_many_heads,
    judge_patterns_cause,
    patched,
    patching_table,
)
from emergence_lib.experiments.pocket_suite import PocketRun
from emergence_lib.models import Transformer
from emergence_lib.models.pocket import pocket_config
from emergence_lib.models.pythia import Loaded
from emergence_lib.tasks.corpus import pocket_tokenizer

torch.set_num_threads(1)
SCHEDULE = PocketRun("98k").schedule()


class Solves:
    """A "model" that answers every prompt right, or none."""

    def __init__(self, tokens, target, right):
        self.answers = dict(zip(map(tuple, tokens.tolist()), target.tolist(), strict=True))
        self.right = right

    def __call__(self, tokens):
        logits = torch.zeros(*tokens.shape, 2048)
        for i, prompt in enumerate(tokens.tolist()):
            logits[i, -1, self.answers.get(tuple(prompt), 0) if self.right else 0] = 9
        return logits


@pytest.fixture
def checkpoints(monkeypatch):
    """Fake runs: `here` holds the steps on this machine; solved from step 700 on."""
    here, trained = set(SCHEDULE), []
    asked, _ = prompts_of("string_repetition", pocket_tokenizer(), 4)

    def load(size, seed, step, source):
        assert step in here
        return Loaded(Solves(asked.tokens, asked.target, step >= 700), pocket_tokenizer(), "", None)

    def train(size, seed):
        trained.append((size, seed))
        here.update(SCHEDULE)

    monkeypatch.setattr(experiment, "load", load)
    monkeypatch.setattr(experiment, "checkpoint_steps", lambda size, seed: tuple(sorted(here)))
    monkeypatch.setattr(experiment, "train_checkpoints", train)
    return here, trained


def find(strides):
    return bracket("pocket", "98k", 0, "string_repetition", strides, n_prompts=4)


def test_the_bracket_widens_from_neighbouring_checkpoints(checkpoints):
    assert find(1) == Bracket(680, 700)
    assert find(7) == Bracket(560, 820)


def test_the_bracket_ends_where_the_run_does(checkpoints, monkeypatch):
    assert find(70) == Bracket(0, 2080)
    assert checkpoints[1] == []  # nothing had to be trained


def test_a_few_shipped_checkpoints_are_enough_if_they_are_the_right_ones(checkpoints):
    here, trained = checkpoints
    here.intersection_update({0, 560, 680, 700, 820, 2860})
    assert find(7) == Bracket(560, 820)
    assert trained == []


@pytest.mark.parametrize("shipped", [set(), {0, 400, 2860}, {0, 680, 700, 2860}])
def test_what_is_missing_is_trained(checkpoints, shipped):
    here, trained = checkpoints
    here.intersection_update(shipped)
    assert find(7) == Bracket(560, 820)
    assert trained == [("98k", 0)]


def test_a_run_that_never_gets_there_leaves_an_empty_row(monkeypatch):
    monkeypatch.setattr(experiment, "bracket", lambda **params: None)
    (point,) = ATTENTION_PATCHING.points("smoke")
    row = ATTENTION_PATCHING.run(point, "cpu")
    ATTENTION_PATCHING.check_row(row)
    assert set(row.values()) == {None}


@pytest.fixture(scope="module")
def pair():
    models = [
        Transformer(
            replace(pocket_config("98k", 2048), init_std=0.3), torch.Generator().manual_seed(i)
        ).eval()
        for i in (0, 1)
    ]
    return models, prompts_of("ioi", pocket_tokenizer(), 6)


def test_the_curves_begin_at_pre_and_fill_the_schema(pair):
    (pre, post), (asked, control) = pair
    row = curves(pre, post, asked, control, torch.Generator().manual_seed(0))
    ATTENTION_PATCHING.check_row(row | {"pre_step": 0, "post_step": 1})
    n_heads = 2 * 4
    for component in ("pattern", "v", "z"):
        assert len(row[f"delta_{component}"]) == n_heads
        fractions = np.array(row[f"recovered_{component}"])
        assert len(fractions) == n_heads + 1
        assert fractions[0] == 0
        low, high = np.array(row[f"low_{component}"]), np.array(row[f"high_{component}"])
        assert ((low <= fractions) & (fractions <= high)).all()
    # All heads in any order is the same patch.
    assert row["recovered_random"][-1] == pytest.approx(row["recovered_pattern"][-1], abs=1e-3)
    # The best head recovers its own Δp.
    best = max(row["delta_pattern"]) / (row["p_post"] - row["p_pre"])
    assert row["recovered_pattern"][1] == pytest.approx(best, abs=1e-3)


def test_equal_models_have_no_gap_to_recover(pair):
    (pre, _), (asked, control) = pair
    row = curves(pre, pre, asked, control, torch.Generator())
    assert row["delta_pattern"] == [0.0] * 8
    assert np.isnan(row["recovered_pattern"]).all()
    assert row["control_rise"] == 0


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"sizes": ("14m",)}, UnknownNameError, "14m"),
        ({"capabilities": ("io",)}, UnknownNameError, "'ioi'"),
        ({"capabilities": ()}, ParameterError, "capability"),
        ({"strides": 0}, ParameterError, "strides=0"),
        ({"seeds": 0}, ParameterError, "seeds=0"),
        ({"n_prompts": 1}, ParameterError, "n_prompts=1"),
    ],
)
def test_impossible_grids_are_refused(change, error, named):
    with pytest.raises(error, match=named):
        replace(PatchingGrid(), **change)


def make_rows(pattern, random, n=6, outputs=1.0):
    """Runs of 8 heads whose curves are all the same."""
    full = [0.0, *np.linspace(0.5, 1, 8) * outputs]
    row = {
        "source": "pocket",
        "strides": 7,
        "capability": "ioi",
        "size": "98k",
        "pre_step": 10.0,
        "p_pre": 0.2,
        "p_post": 0.6,
        "control_rise": 0.0,
        "recovered_pattern": pattern,
        "recovered_random": random,
        "recovered_v": full,
        "recovered_z": full,
    }
    return pd.DataFrame([row | {"seed": seed} for seed in range(n)])


LINE = list(np.linspace(0, 1, 9))
EARLY = [0, 0.5, 0.8, 0.9, 0.95, 1, 1, 1, 1.0]
WEAK = [0.2 * value for value in LINE]


def test_shares_of_heads_round_up():
    row = make_rows(LINE, LINE).iloc[0]
    assert at_share(row, "recovered_pattern", 0.25) == LINE[2]
    assert at_share(row, "recovered_pattern", 0.26) == LINE[3]
    assert at_share(row, "recovered_pattern", 1.0) == 1


@pytest.mark.parametrize(
    ("pattern", "random", "n", "status"),
    [
        (EARLY, LINE, 6, "reproduced"),
        (LINE, WEAK, 6, "partly"),  # better than random, and all of them recover it
        (WEAK, WEAK, 6, "not reproduced"),
        (EARLY, LINE, 4, "not tested here"),
    ],
)
def test_patterns_cause_it_if_few_of_them_recover_most(pattern, random, n, status):
    assert judge_patterns_cause(make_rows(pattern, random, n)).status == status


@pytest.mark.parametrize(
    ("pattern", "status"),
    [
        (LINE, "reproduced"),
        ([0, 0.9, *[1.0] * 7], "not reproduced"),
        ([0.09 * v for v in LINE], "not tested here"),
    ],
)
def test_many_heads_if_the_best_one_does_little(pattern, status):
    assert judge_many_heads(make_rows(pattern, LINE)).status == status


def test_a_verdict_names_the_models_it_is_about():
    rows = make_rows(EARLY, LINE)
    for judge in (judge_patterns_cause, judge_many_heads):
        assert "real Pythia is not tested here" in judge(rows).evidence
        assert "PolyPythias" in judge(rows.assign(source="hub")).evidence


def test_seeds_are_the_unit_not_capabilities():
    two = pd.concat([make_rows(EARLY, LINE), make_rows(EARLY, LINE).assign(capability="x")])
    assert judge_patterns_cause(two).n == 6


def test_runs_without_emergence_or_gap_are_left_out():
    rows = make_rows(EARLY, LINE)
    rows.loc[0, "pre_step"] = math.nan
    rows.loc[1, "p_post"] = 0.24  # .04 above p_pre
    assert patched(rows, 7).seed.tolist() == [2, 3, 4, 5]
    table = patching_table(rows)
    assert table.n.tolist() == [4]
    assert table["top quarter"].iloc[0] == pytest.approx(0.8)
    assert table["random quarter"].iloc[0] == pytest.approx(0.25)
    assert patching_table(rows.assign(pre_step=math.nan)).n.tolist() == [0]
