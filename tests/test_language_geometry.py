"""The experiment `language_geometry`: its probe against other computations, its judge on made-up
rows, and the same call on the pocket suite and on a folder of the Hub's layout."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from emergence_lib import plotting
from emergence_lib.analysis.capability import score
from emergence_lib.analysis.geometry import rankme
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import language_geometry as experiment
from emergence_lib.experiments import language_geometry_evidence as found
from emergence_lib.experiments.language_geometry import (
    LANGUAGE_GEOMETRY,
    LanguageGrid,
    download,
    hub_checkpoints,
    scan_checkpoints,
)
from emergence_lib.experiments.language_probe import CONTROLS, GROUPS, LanguageProbe
from emergence_lib.experiments.pocket_suite import PocketRun
from emergence_lib.models import Transformer
from emergence_lib.models.pocket import checkpoint_steps, load_pocket, pocket_config
from emergence_lib.models.pythia import STEPS, Loaded, download_size
from emergence_lib.tasks.corpus import corpus, pocket_tokenizer
from emergence_lib.tasks.corpus_pieces import domain_windows, held_out_pieces
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.tasks.prompts import CAPABILITIES
from emergence_lib.training import train

torch.set_num_threads(1)
STEP = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]


@pytest.fixture(scope="module")
def probe():
    return LanguageProbe(pocket_tokenizer(), 6)


@pytest.fixture(scope="module")
def smoke():
    (point,) = LANGUAGE_GEOMETRY.points("smoke")
    return point, LANGUAGE_GEOMETRY.run(point, "cpu")


# --- inputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_pieces_are_held_out_text_of_their_domain(domain):
    pieces = held_out_pieces(domain, torch.Generator().manual_seed(0))
    pile = corpus()
    assert len(pieces) > 400
    assert len(set(pieces)) == len(pieces)
    ids = pocket_tokenizer().encode(pieces[0]).ids
    assert 0.9 * 192 < len(ids) < 1.1 * 192
    bare = [piece.removesuffix("<|endoftext|>") for piece in pieces]
    assert not any("<|endoftext|>" in piece for piece in bare)  # each lies in one document
    low, high = pile.span("held out")
    own = pile.labels["domain"][low:high] == DOMAINS.index(domain)
    text = pocket_tokenizer().decode(pile.tokens[low:high][own].tolist(), False)
    assert all(piece in text for piece in pieces[:40])


def test_windows_are_different_texts_of_one_length():
    windows = domain_windows(pocket_tokenizer(), "prose", 200, 64, torch.Generator().manual_seed(1))
    assert windows.shape == (200, 64)
    assert len(windows.unique(dim=0)) == 200
    with pytest.raises(ParameterError, match="pieces of prose"):
        domain_windows(pocket_tokenizer(), "prose", 5_000, 64, torch.Generator())
    with pytest.raises(ParameterError, match="code, prose, story"):
        domain_windows(pocket_tokenizer(), "poems", 2, 64, torch.Generator())


def test_control_prompts_stand_beside_their_prompts(probe):
    """Drawn from the same state: the IOI prompts differ in the giver alone."""
    clean, control = (probe.inputs[name] for name in ("ioi", CONTROLS["ioi"]))
    assert ((clean != control).sum(1) == 1).all()
    assert torch.equal(probe.targets["ioi"], probe.targets[CONTROLS["ioi"]])


# --- the probe ---------------------------------------------------------------------------------


def test_the_probe_agrees_with_the_instruments_alone(probe):
    model = load_pocket("442k", 0, checkpoint_steps("442k", 0)[-1])
    metrics = probe.measure(model)
    for group in ("story", "ioi", CONTROLS["numbered_pattern"]):
        tap = {"resid.2": None, "resid.4": None}
        with torch.no_grad():
            model(probe.inputs[group], tap=tap)
        for layer in (2, 4):
            vectors = tap[f"resid.{layer}"][:, -1]
            g = GROUPS.index(group)
            assert metrics[f"rankme.{layer}.{g}"] == pytest.approx(rankme(vectors), rel=1e-5)
            centred = rankme(vectors, centred=True)
            assert metrics[f"rankme_centred.{layer}.{g}"] == pytest.approx(centred, rel=1e-5)
    for name in CAPABILITIES:
        asked = score(model, probe.inputs[name], probe.targets[name])
        assert metrics[f"p.{name}"] == pytest.approx(asked.p.mean().item(), rel=1e-5)
        assert metrics[f"solved.{name}"] == asked.solved.float().mean().item()
        control = score(model, probe.inputs[CONTROLS[name]], probe.targets[name])
        assert metrics[f"control_solved.{name}"] == control.solved.float().mean().item()
    text = probe.inputs["story"]
    with torch.no_grad():
        logits = model(text)[:, :-1]
    loss = F.cross_entropy(logits.transpose(1, 2), text[:, 1:])
    assert metrics["loss.story"] == pytest.approx(loss.item(), rel=1e-5)
    right = (logits.argmax(-1) == text[:, 1:]).double().mean()
    assert metrics["accuracy.story"] == pytest.approx(right.item(), rel=1e-5)


# --- the experiment ----------------------------------------------------------------------------


def test_the_smoke_profile_leaves_a_row_of_the_schema(smoke):
    _, row = smoke
    LANGUAGE_GEOMETRY.check_row(row)
    assert row["checkpoints"] == [0, 1, 2, 4]
    assert np.shape(row["rankme"]) == np.shape(row["rankme_centred"]) == (len(GROUPS), 2, 4)
    assert np.shape(row["loss"]) == np.shape(row["accuracy"]) == (len(DOMAINS), 4)
    assert np.shape(row["solved"]) == np.shape(row["p"]) == (len(CAPABILITIES), 4)
    assert np.mean(row["loss"], 0)[-1] < np.mean(row["loss"], 0)[0]


def test_a_run_is_that_of_the_suite_and_its_own_at_every_call(smoke):
    """Looking does not change training: the last model is that of the suite's recipe."""
    point, row = smoke
    suite = PocketRun("98k", steps=4)
    batch = suite.task().sample(1, torch.Generator().manual_seed(5))
    unseen = train(
        suite.task(),
        suite.model_config(),
        suite.train_config(0),
        evaluations=(4,),
        eval_batch=batch,
    )
    metrics = LanguageProbe(pocket_tokenizer(), 4).measure(unseen.model)
    last = [losses[-1] for losses in row["loss"]]
    assert last == [pytest.approx(metrics[f"loss.{name}"], abs=1e-5) for name in DOMAINS]
    assert LANGUAGE_GEOMETRY.run(point, "cpu") == row


def test_recorded_grids():
    counts = {}
    for point in LANGUAGE_GEOMETRY.points("cpu"):
        counts[point.params["size"]] = counts.get(point.params["size"], 0) + 1
    assert counts == {"98k": 5, "442k": 2}
    paper = LANGUAGE_GEOMETRY.points("paper")
    assert [p.params["size"] for p in paper] == ["160m", "410m", "2.8b"]
    assert [len(hub_checkpoints(p.params["n_checkpoints"])) for p in paper[:2]] == [154, 154]
    assert download(paper[0]) == 154 * download_size("160m")
    assert download(LANGUAGE_GEOMETRY.points("cpu")[0]) == 0


def test_checkpoints_of_the_hub_are_pythias_and_dense_early():
    some = hub_checkpoints(40)
    assert set(some) <= set(STEPS)
    assert (some[0], some[-1]) == (0, STEPS[-1])
    assert {1, 2, 4, 8, 512, 1_000} <= set(some)
    assert hub_checkpoints(154) == STEPS


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"source": "disk"}, UnknownNameError, "'disk'"),
        ({"sizes": ("160m",)}, UnknownNameError, "source 'pocket'"),
        ({"source": "hub"}, UnknownNameError, "source 'hub'"),
        ({"source": "hub", "sizes": "2.8b"}, ParameterError, "seed=4"),
        ({"sizes": ()}, ParameterError, "98k"),
        ({"seeds": 0}, ParameterError, "seeds=0"),
        ({"steps": 0}, ParameterError, "steps=0"),
        ({"samples": 1}, ParameterError, "samples=1"),
        ({"n_checkpoints": 1}, ParameterError, "n_points=1"),
    ],
)
def test_impossible_grids_are_refused(change, error, named):
    with pytest.raises(error, match=named):
        dataclasses.replace(LanguageGrid(), **change)


def test_kept_checkpoints_of_the_suite_are_read_through_the_call_for_pythia():
    steps = checkpoint_steps("442k", 0)[:2]
    columns = scan_checkpoints("442k", 0, steps, "pocket", samples=3)
    LANGUAGE_GEOMETRY.check_row(columns)
    probe = LanguageProbe(pocket_tokenizer(), 3)
    metrics = probe.measure(load_pocket("442k", 0, steps[1]))
    assert columns["checkpoints"] == list(steps)
    assert columns["rankme"][2][3][1] == pytest.approx(metrics["rankme.4.2"], abs=1e-4)


def test_the_hub_is_read_step_by_step_and_fetched_ahead(monkeypatch):
    ahead = []
    model = Transformer(pocket_config("98k", 2048)).eval()

    def load(size, seed, step, source):
        assert (size, seed, source) == ("160m", 0, "hub")
        return Loaded(model, pocket_tokenizer(), "digest", None)

    monkeypatch.setattr(experiment.pythia, "load", load)
    monkeypatch.setattr(experiment.pythia, "prefetch", lambda *a: ahead.append(tuple(a[2])))
    (point,) = LanguageGrid(
        source="hub", sizes="160m", seeds=1, n_checkpoints=3, samples=2
    ).points()
    row = LANGUAGE_GEOMETRY.run(point, "cpu")
    LANGUAGE_GEOMETRY.check_row(row)
    assert row["checkpoints"] == list(hub_checkpoints(3))
    assert row["checkpoints"][-1] == 143_000
    assert ahead == [*((s,) for s in row["checkpoints"][1:]), ()]


def test_a_folder_of_the_hubs_layout_gives_the_ranks_of_transformers_own_states(tmp_path):
    """Pythia's way through the probe, offline: a GPT-NeoX on disk, with a tokenizer beside it."""
    config = GPTNeoXConfig(
        vocab_size=2048,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=2048,
        rotary_pct=0.25,
    )
    torch.manual_seed(0)
    hf_model = GPTNeoXForCausalLM(config).eval()
    hf_model.save_pretrained(tmp_path / "step7")
    pocket_tokenizer().save(str(tmp_path / "tokenizer.json"))
    columns = scan_checkpoints("mine", 0, (7,), tmp_path, samples=5)
    probe = LanguageProbe(pocket_tokenizer(), 5)
    for group in ("prose", "ioi"):
        with torch.no_grad():
            states = hf_model(probe.inputs[group], output_hidden_states=True).hidden_states[1]
        expected = rankme(states[:, -1])
        assert columns["rankme"][GROUPS.index(group)][0] == [pytest.approx(expected, abs=1e-3)]


# --- the verdict -------------------------------------------------------------------------------

FLAT, EARLY = [9.0] * 10, [9, 8, 4, 3, 5, 8, 9, 9, 9, 9]  # the floor of EARLY is at step 4
LATE = [9, 9, 9, 9, 9, 9, 9, 9, 3, 9]  # its floor is at step 128
NEVER, AT_32 = [0.0] * 10, [0, 0, 0, 0, 0, 0, 0.9, 0.9, 0.9, 0.9]


def made_up(texts, own, control, solved=AT_32, controls_solved=NEVER, seed=0):
    """A row of one layer; all domains alike, and all capabilities."""
    ranks = [texts] * len(DOMAINS) + [own] * len(CAPABILITIES) + [control] * len(CAPABILITIES)
    return {
        "source": "pocket",
        "size": "98k",
        "seed": seed,
        "checkpoints": STEP,
        "rankme": [[r] for r in ranks],
        "rankme_centred": [[r] for r in ranks],
        "loss": [FLAT] * len(DOMAINS),
        "accuracy": [NEVER] * len(DOMAINS),
        "p": [solved] * len(CAPABILITIES),
        "solved": [solved] * len(CAPABILITIES),
        "control_solved": [controls_solved] * len(CAPABILITIES),
    }


def rows_of(*args, n=3, **kwargs):
    return pd.DataFrame([made_up(*args, **kwargs, seed=seed) for seed in range(n)])


@pytest.mark.parametrize(
    ("texts", "own", "control", "status", "said"),
    [
        (EARLY, EARLY, EARLY, "partly", "recovery: yes; no precursor of its own: yes"),
        (EARLY, EARLY, FLAT, "partly", "recovery: yes; no precursor of its own: no"),
        (FLAT, EARLY, EARLY, "partly", "recovery: no; no precursor of its own: yes"),
        (FLAT, EARLY, FLAT, "not reproduced", "recovery: no; no precursor of its own: no"),
        (FLAT, EARLY, LATE, "not reproduced", "recovery: no; no precursor of its own: no"),
        (EARLY, LATE, EARLY, "partly", "recovery: yes; no precursor of its own: yes"),
    ],
)
def test_verdicts(texts, own, control, status, said):
    verdict = found.judge_language(rows_of(texts, own, control))
    assert (verdict.status, verdict.n) == (status, 3)
    assert said in verdict.evidence
    assert "hard reasoning task is not tested" in verdict.evidence
    assert "98k (3 runs)" in verdict.evidence


def test_too_few_runs_or_acquired_capabilities_test_nothing():
    assert found.judge_language(rows_of(EARLY, EARLY, FLAT, n=2)).status == "not tested here"
    never = rows_of(EARLY, EARLY, FLAT, solved=NEVER, n=5)
    assert (found.judge_language(never).status, found.judge_language(never).n) == (
        "not tested here",
        0,
    )


def test_a_guess_that_also_solves_the_controls_is_no_acquisition():
    half = [0.5] * 10
    (_, row), *_ = rows_of(FLAT, FLAT, FLAT, solved=AT_32, controls_solved=half).iterrows()
    assert found.gain(row, "ioi").tolist() == pytest.approx([-1] * 6 + [0.8] * 4)
    (_, row), *_ = rows_of(FLAT, FLAT, FLAT, solved=half, controls_solved=half).iterrows()
    assert not found.acquired(row, "ioi").observed
    (_, row), *_ = rows_of(FLAT, FLAT, FLAT, solved=half, controls_solved=[1.0] * 10).iterrows()
    assert (found.gain(row, "ioi") == 0).all()  # no room above the controls


def test_lead_and_phase_tables_of_known_curves():
    rows = rows_of(EARLY, EARLY, LATE, n=1)
    table = found.lead_table(rows)
    assert len(table) == len(CAPABILITIES)
    assert set(table.acquired) == {32}
    assert set(table["lead"]) == {28}
    assert table.own.all()
    assert not table.control.any()
    assert set(table.texts) == {1.0}
    phases = found.phase_table(rows).set_index("group")
    assert phases.loc["code", ["untrained", "peak", "floor", "floor_step"]].tolist() == [9, 9, 3, 4]
    assert phases.loc["code", "recovered"] == 16  # 8 of 9, past the middle 6
    assert phases.whole.all()
    shown = found.acquired_table(rows)
    assert shown["only its own"].tolist() == [1] * 4
    assert shown.runs.tolist() == [1] * 4


def test_figures_and_tables_before_anything_is_recorded_and_after(smoke):
    point, row = smoke
    one = pd.DataFrame([row | dict(point.params) | {"seed": 0}])
    for rows in (one, one[:0]):
        assert len(found.acquired_table(rows)) == 0
        plotting.three_phases(found.phase_panels(rows, GROUPS[:7]))
        panels = found.beside_controls(rows)
        figure = plotting.over_checkpoints(panels, plotting.PROMPT_COLOURS, "RankMe", first=4)
        title = figure.axes[0].get_title()
        assert title == "string repetition" + ("" if len(rows) else ": not recorded yet")
        plt.close("all")
