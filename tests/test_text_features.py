"""The experiment `text_features`: what it measures, and verdicts C-7, C-8 and C-9."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib.analysis.influence import integrated_influence
from emergence_lib.analysis.probes import fit_ridge
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.evidence import named_groups
from emergence_lib.experiments.text_cell import (
    FEATURES,
    PROBED,
    TextCell,
    feature_values,
    integrated,
)
from emergence_lib.experiments.text_features import (
    TEXT_FEATURES,
    TextFeaturesGrid,
    unit_directions,
)
from emergence_lib.experiments.text_features_evidence import (
    by_feature,
    decodability,
    features_of,
    influence_table,
    judge_myopic_costs_loss,
    judge_story_position_needs_precaching,
    judge_syntax_is_direct,
    loss_table,
    losses,
)
from emergence_lib.tasks.stories import PARTS_OF_SPEECH
from emergence_lib.training.train import step_generator

torch.set_num_threads(1)


# --- what is measured -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smoke():
    points = TEXT_FEATURES.points("smoke")
    return {point.params["myopic"]: TEXT_FEATURES.run(point, "cpu") for point in points}


def test_a_row_fills_the_schema(smoke):
    for row in smoke.values():
        TEXT_FEATURES.check_row(row)
        assert np.shape(row["probe"]) == np.shape(row["untrained"]) == (3, len(FEATURES))
    assert np.shape(smoke[False]["influence_adam"]) == (1, 3, len(FEATURES))
    assert smoke[True]["influence_adam"] is None
    # One seed, one start: the untrained models are the same, the trained ones are not.
    assert smoke[False]["untrained"] == smoke[True]["untrained"]
    assert smoke[False]["final_loss"] != smoke[True]["final_loss"]
    assert smoke[False]["eval_loss"][0] == smoke[True]["eval_loss"][0]


def test_features_are_the_labels_of_the_probed_tokens():
    batch = TextCell("stories").held_out(5, "test")
    values = feature_values(batch).view(5, len(PROBED), len(FEATURES))
    speech = batch.labels["part_of_speech"][:, 30:40]
    verb = values[..., FEATURES.index("tag: verb")]
    assert torch.equal(verb, (speech == PARTS_OF_SPEECH.index("verb")).float())
    index = values[..., FEATURES.index("story: index")]
    assert torch.equal(index, batch.labels["token_index"][:, 30:40].float())
    assert [len(features_of(kind)) for kind in ("part of speech", "place in the story")] == [10, 2]


def test_directions_read_with_variance_one():
    x = torch.randn(4, 300, 8, generator=torch.Generator().manual_seed(0))
    y = x[0] @ torch.randn(8, 3, generator=torch.Generator().manual_seed(1)) + 5
    directions = unit_directions(fit_ridge(x, y), x)
    assert {k for k, _ in directions} == {1, 2}  # neither embeddings nor the last stream
    for (k, _), w in directions.items():
        assert (x[k] @ w.T).std(0).numpy() == pytest.approx(np.ones(3), rel=1e-4)


def test_measuring_every_step_is_the_two_run_protocol():
    """With `track_every` 1 the stored weights give what the second run of the paper gives."""
    cell = TextCell(
        "stories", n_layers=2, d_model=16, window=8, steps=4, batch_size=3, track_every=1
    )
    w = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    directions = {(1, 3): w, (1, 5): 2 * w}
    run = cell.train(0, "cpu")
    table, mismatch = integrated(cell, run, directions, 0)
    expected = integrated_influence(
        cell.task(), cell.model_config(), cell.train_config(0), lambda model: directions
    )
    assert table.influence.to_numpy() == pytest.approx(
        expected.influences.influence.to_numpy(), rel=1e-4, abs=1e-9
    )
    assert torch.allclose(mismatch[1, 5], expected.mismatch[1, 5])


def test_a_measured_step_stands_for_those_up_to_the_next():
    cell = TextCell(
        "stories", n_layers=2, d_model=16, window=8, steps=4, batch_size=3, track_every=4
    )
    directions = {(1, 3): torch.randn(2, 16, generator=torch.Generator().manual_seed(0))}
    run = cell.train(0, "cpu")
    table, _ = integrated(cell, run, directions, 0)
    model = cell.model_config().build(step_generator(0, "weights"))
    assert torch.equal(run.checkpoint(0)["embed.weight"], model.embed.weight)
    sgd = table[table.rule == "sgd"].influence
    one = TextCell(**(cell.params() | {"track_every": 1}))
    every, _ = integrated(one, one.train(0, "cpu"), directions, 0)
    assert sgd.abs().sum() > 0
    # The first step's influence, four times; the others differ from it, but not by their size.
    ratio = sgd.abs().sum() / every[every.rule == "sgd"].influence.abs().sum()
    assert ratio < 1  # the learning rate warms up, so the first step is the smallest


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"seeds": 0}, "seeds"), ({"n_layers": 1}, "n_layers"), ({"steps": 5}, "track_every")],
)
def test_impossible_grids_name_their_parameter(changes, name):
    with pytest.raises(ParameterError, match=f"{name}="):
        TextFeaturesGrid(**changes)


def test_an_unknown_corpus_is_named():
    with pytest.raises(UnknownNameError, match="storys"):
        TextCell("storys").task()


def test_the_first_seed_comes_first_and_as_a_pair():
    points = TEXT_FEATURES.points("cpu")
    assert [(p.seed, p.params["myopic"]) for p in points[:3]] == [(0, False), (0, True), (1, False)]


def test_no_column_is_a_parameter_too():
    (point, *_) = TEXT_FEATURES.points("smoke")
    assert not set(point.params) & set(TEXT_FEATURES.schema)


# --- verdicts -------------------------------------------------------------------------------------


def rows(
    n: int = 5,
    gap: float = 0.5,
    direct: float = 3.0,
    precached: float = 0.2,
    shared: float = 1.0,
    story: tuple[float, float, float] = (0.1, 0.5, 0.15),
) -> pd.DataFrame:
    """Runs with small differences between seeds; story: r before, after plain, after myopic."""
    rng = np.random.default_rng(0)
    made = []
    for seed, myopic in product(range(n), (False, True)):
        noise = 0.01 * rng.normal()
        before, plain, after_myopic = story

        def scores(r: float, noise: float = noise) -> list[list[float]]:
            return [[0.9] * len(FEATURES)] + 3 * [[0.8 + noise] * 20 + [r + noise] * 2]

        parts = [[[x + noise] * len(FEATURES) for x in (direct, precached, shared)]] * 2
        made.append(
            {
                "seed": seed,
                "myopic": myopic,
                "final_loss": 2.5 + gap * myopic + noise,
                "probe": scores(after_myopic if myopic else plain),
                "untrained": scores(before),
                "influence_adam": None if myopic else parts,
                "influence_sgd": None if myopic else parts,
            }
        )
    return pd.DataFrame(made)


def test_myopic_training_costs_loss():
    verdict = judge_myopic_costs_loss(rows())
    assert (verdict.status, verdict.n) == ("reproduced", 10)
    assert "0.5" in verdict.evidence
    assert judge_myopic_costs_loss(rows(gap=0.0)).status == "not reproduced"
    assert judge_myopic_costs_loss(rows(gap=-0.5)).status == "not reproduced"
    assert judge_myopic_costs_loss(rows(n=2)).status == "not tested here"


def test_pairs_need_both_runs():
    made = rows(n=3)
    assert len(losses(made)) == 3
    assert len(losses(made.drop(index=1))) == 2
    assert losses(made).plain.to_numpy() == pytest.approx(made.final_loss[~made.myopic].to_numpy())


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({"direct": 3.0, "precached": 0.2, "shared": 1.0}, "reproduced"),
        ({"direct": 3.0, "precached": 0.2, "shared": 20.0}, "partly"),
        ({"direct": 0.2, "precached": 3.0, "shared": 0.1}, "not reproduced"),
        ({"direct": -0.5, "precached": -2.0, "shared": 5.0}, "not reproduced"),
    ],
)
def test_syntax_is_judged_by_its_largest_part(parts, status):
    verdict = judge_syntax_is_direct(rows(**parts))
    assert (verdict.status, verdict.n) == (status, 5)


def test_syntax_needs_three_plain_runs():
    assert judge_syntax_is_direct(rows(n=2)).status == "not tested here"


@pytest.mark.parametrize(
    ("story", "status"),
    [
        ((0.1, 0.5, 0.15), "reproduced"),
        ((0.1, 0.5, 0.4), "partly"),
        ((0.1, 0.5, 0.5), "not reproduced"),
        ((0.1, 0.3, 0.5), "not reproduced"),
        ((0.3, 0.31, 0.3), "not tested here"),
    ],
)
def test_story_position_is_judged_by_what_training_adds(story, status):
    made = rows(story=story)
    if status == "not reproduced":  # no two runs are equal
        made["probe"] = [
            [[v + 0.02 * (-1) ** (i // 3) for v in layer] for layer in scores]
            for i, scores in enumerate(made.probe)
        ]
    assert judge_story_position_needs_precaching(made).status == status


def test_story_position_needs_three_pairs():
    assert judge_story_position_needs_precaching(rows(n=2)).status == "not tested here"


def test_tables_leave_out_what_is_not_there_and_hold_what_is():
    made = rows(n=4)
    table = influence_table(made).set_index(["kind", "part"])
    assert table.loc[("part of speech", "direct"), "value"] == pytest.approx(3, abs=0.02)
    assert (table.n == 4).all()
    read = decodability(made).set_index(["kind", "training"])
    assert read.loc[("place in the story", "plain"), "value"] == pytest.approx(0.5, abs=0.02)
    assert read.loc[("place in the story", "untrained"), "value"] == pytest.approx(0.1, abs=0.02)
    assert by_feature(made).shared.to_numpy() == pytest.approx(np.ones(22), abs=0.02)
    empty = made.iloc[:0]
    assert influence_table(empty).value.isna().all()
    assert decodability(empty).value.isna().all()
    assert by_feature(empty).empty


def test_groups_for_a_figure_keep_the_order_and_leave_out_unknown_runs():
    groups = named_groups(loss_table(rows(n=3)), "training", "loss")
    assert list(groups) == ["plain", "no pre-caching"]
    names, (estimate,), (runs,) = groups["no pre-caching"]
    assert names == ["held-out loss"]
    assert estimate.value == pytest.approx(np.mean(runs)) == pytest.approx(3.0, abs=0.02)
    assert len(runs) == 3
    table = loss_table(rows(n=3)).assign(runs=[[1.0, np.nan], [2.0, 3.0]])
    assert named_groups(table, "training", "loss")["plain"][2] == [[1.0]]
    assert named_groups(table.assign(runs=[[np.nan], []]), "training", "loss") == {}
