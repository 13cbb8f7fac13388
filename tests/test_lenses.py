"""All lenses on one run: each against its own instrument, and the experiment that looks through."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from emergence_lib.analysis.attention import alignment, entropy
from emergence_lib.analysis.geometry import rankme
from emergence_lib.analysis.lenses import MEASURES, LensObserver
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import explorer
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.explorer import EXPLORER
from emergence_lib.experiments.lenses import COMPARED, DIFFICULTIES, LENSES, LensGrid
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import LinearMap, Majority

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def seen():
    """(task, model, batch, logits, tapped, observer, metrics) of two layers, with a bias."""
    task = LinearMap(4, 2)
    config = ModelConfig(2, 16, 2, vocab_size=2, max_pos=7, init_std=0.3)
    model = Transformer(config, torch.Generator().manual_seed(1))
    batch = task.sample(64, torch.Generator().manual_seed(2))
    observer = LensObserver(task, 2, attention_bias=1.5)
    tap = dict.fromkeys(observer.taps)
    with torch.no_grad():
        bias = 1.5 * task.attention_target().float()
        logits = model(batch.tokens[:, :-1], attn_bias=bias, tap=tap)
        metrics = observer(model, batch, logits, tap)
    return task, model, batch, logits, tap, observer, metrics


def test_queries_are_those_that_predict_the_output(seen):
    assert seen[5].queries.tolist() == [3, 4, 5, 6]
    few = LensObserver(LinearMap(8, 2), 1, n_queries=4).queries.tolist()
    assert (len(few), few[-1]) == (4, 14)
    assert min(few) >= 7


def test_each_lens_agrees_with_its_own_instrument(seen):
    task, _, batch, logits, tap, _, metrics = seen
    target = task.attention_target()
    for i, q in enumerate((3, 4, 5, 6)):
        heads = [tap[f"pattern.{layer}"][:, head] for layer in range(2) for head in range(2)]
        best = max(alignment(pattern, target)[:, q].mean().item() for pattern in heads)
        sure = min(entropy(pattern)[:, q].mean().item() for pattern in heads)
        loss = F.cross_entropy(logits[:, q], batch.tokens[:, q + 1]).item()
        vectors = tap["resid.2"][:, q]
        assert metrics[f"alignment.{i}"] == pytest.approx(best, rel=1e-5)
        assert metrics[f"entropy.{i}"] == pytest.approx(sure, rel=1e-5)
        assert metrics[f"query_loss.{i}"] == pytest.approx(loss, rel=1e-5)
        assert metrics[f"rankme.{i}"] == pytest.approx(rankme(vectors), rel=1e-5)
        centred = rankme(vectors, centred=True)
        assert metrics[f"rankme_centred.{i}"] == pytest.approx(centred, rel=1e-5)


def test_gradients_are_those_of_each_prediction_alone_under_the_bias(seen):
    """∂L_q/∂r at q from one backward pass a prediction; what reaches other columns is later's."""
    task, model, batch, _, _, _, metrics = seen
    bias = 1.5 * task.attention_target().float()

    def backward(positions):
        tap = dict.fromkeys(("resid.0", "resid.1"))
        logits = model(batch.tokens[:, :-1], attn_bias=bias, tap=tap)
        losses = [F.cross_entropy(logits[:, q], batch.tokens[:, q + 1]) / 7 for q in positions]
        return torch.stack(torch.autograd.grad(sum(losses), list(tap.values())))

    full, direct = backward(range(7)), torch.zeros(2, 64, 7, 16)
    for q in range(7):
        direct[:, :, q] = backward([q])[:, :, q]
    own, later = direct.square().sum(), (full - direct).square().sum()
    assert metrics["precached"] == pytest.approx((later / (later + own)).item(), rel=1e-4)
    norms = direct.square().sum((0, 1, 3))
    for i, q in enumerate((3, 4, 5, 6)):
        assert metrics[f"direct.{i}"] == pytest.approx(norms[q].sqrt().item(), rel=1e-4)


def test_a_task_without_a_fixed_target_is_refused():
    with pytest.raises(ParameterError, match="fixed attention target"):
        LensObserver(Majority(), 1)


def test_smoke_leaves_a_row_with_every_measure():
    (point,) = LENSES.points("smoke")
    row = LENSES.run(point, "cpu")
    LENSES.check_row(row)
    assert all(len(row[name]) == 8 and len(row[name][0]) == 12 for name in MEASURES)


def test_grids_are_validated():
    with pytest.raises(UnknownNameError, match="linear map"):
        LensGrid(("linear mop",))
    with pytest.raises(ParameterError, match="seeds"):
        LensGrid(seeds=0)


def test_the_lenses_of_the_book_and_the_forecast_do_not_mix():
    conditions = {p.params["condition"] for p in LENSES.points("cpu")}
    assert conditions == {*COMPARED, *DIFFICULTIES}
    assert set(LensGrid().conditions) == set(COMPARED)


def test_smoke_of_the_explorer_keeps_patterns_that_agree_with_the_lens():
    (point,) = EXPLORER.points("smoke")
    row = EXPLORER.run(point, "cpu")
    EXPLORER.check_row(row)
    kept = explorer.patterns(row) / 255
    n = len(row["eval_steps"])
    assert kept.shape == (n, 8, 8, 15)
    assert kept.sum(-1) == pytest.approx(np.ones((n, 8, 8)), abs=0.03)  # 15 keys, 1/510 each
    assert row["queries"] == list(range(7, 15))
    for i, (query, needed) in enumerate(zip(row["queries"], row["needed"], strict=True)):
        assert (kept[:, :, i, query + 1 :] == 0).all()  # a query sees no later key
        best = kept[:, :, i, needed].sum(-1).max(-1)
        assert best == pytest.approx(np.array(row["alignment"][i]), abs=0.01)


def test_the_explorer_looks_at_the_run_of_the_lenses():
    """Same seed, same run: keeping patterns changes nothing."""
    cell = {"condition": "linear map", "steps": 20, "eval_every": 10}
    kept = EXPLORER.run(Point("explorer", 1, cell, 0), "cpu")
    plain = LENSES.run(Point("lenses", 2, cell, 0), "cpu")
    at = [plain["eval_steps"].index(step) for step in kept["eval_steps"]]
    assert kept["eval_loss"] == [plain["eval_loss"][i] for i in at]
