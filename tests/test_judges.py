"""Judges on rows made by hand, for which the verdict and its numbers are known."""

from __future__ import annotations

import math
import re
import warnings
from itertools import chain, count

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import comb

from emergence_lib.analysis.survival import Estimate
from emergence_lib.errors import ParameterError
from emergence_lib.experiments import (
    attention_bias,
    evidence,
    moving_heads,
    plateau,
    sparsity,
    watched_rows,
)
from emergence_lib.experiments.attention_bias import bias_effect, judge_bias_removes_plateau
from emergence_lib.experiments.evidence import steps_in_words, width_sentence, with_interval
from emergence_lib.experiments.moving_heads import gains_by_margin, head_evidence, head_moves
from emergence_lib.experiments.plateau import judge_drops_are_rows, row_evidence
from emergence_lib.experiments.sparsity import judge_medium_is_hardest
from emergence_lib.plotting import WAIT_COLOURS, bit_accuracy
from emergence_lib.tasks import LinearMap

LN2 = math.log(2)


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def reads_well(text):
    return not re.search(r"\bnan\b|\binf\b|None|  ", text)


# --- drops are rows ----------------------------------------------------------------------

SIZE, HEADS, EVERY = 8, 4, 50
STEPS = np.arange(0, 6_001, EVERY)
FALLS = np.arange(600, 600 * (SIZE + 1), 600)  # each row's fall, far from the others'


def staircase(seed=0, falls=FALLS, entropy_drop=1.0, total_falls=None, rows_a_drop=1, learned=SIZE):
    """A run whose row i falls between falls[i] - 50 and falls[i].

    The entropy of head i % 4 at row i falls by `entropy_drop` at that step, and its attention on
    the true inputs rises by 0.4 of that. The total loss is what
    the rows make it, or falls at `total_falls` by the size of `rows_a_drop` rows.
    """
    row_loss = np.full((len(STEPS), SIZE), LN2)
    entropy = np.full((len(STEPS), HEADS, SIZE), 2.0)
    alignment = np.full((len(STEPS), HEADS, SIZE), 0.2)
    for i, step in list(enumerate(falls))[:learned]:
        row_loss[step <= STEPS, i] = 0.0
        entropy[step <= STEPS, i % HEADS, i] -= entropy_drop
        alignment[step <= STEPS, i % HEADS, i] += 0.4 * entropy_drop
    total = ((SIZE - 1) * LN2 + row_loss.sum(1)) / (2 * SIZE - 1)
    if total_falls is not None:
        fallen = sum((step <= STEPS).astype(float) for step in total_falls)
        total = LN2 - rows_a_drop * fallen * LN2 / (2 * SIZE - 1)
    solved = learned == SIZE
    return {
        "seed": seed,
        "state_size": SIZE,
        "n_heads": HEADS,
        "eval_steps": STEPS.tolist(),
        "eval_loss": total.tolist(),
        "row_loss": row_loss.tolist(),
        "row_entropy": entropy.reshape(len(STEPS), -1).tolist(),
        "row_alignment": alignment.reshape(len(STEPS), -1).tolist(),
        "plateau_end": int(min(falls)) if learned else None,
        "stopped_at": int(falls[-1]) if solved else int(STEPS[-1]),
        "solved": solved,
    }


def runs(n=3, **how):
    return pd.DataFrame([staircase(seed, **how) for seed in range(n)])


def test_row_falls_jumps_and_widths_of_a_staircase():
    row = runs(1).iloc[0]
    falls = watched_rows.row_falls(row)
    assert {i: event.step for i, event in falls.items()} == dict(enumerate(FALLS.tolist()))
    assert all(event.observed for event in falls.values())
    found = watched_rows.jumps(row)
    assert [(jump.start, jump.end) for jump, _ in found] == [(s - EVERY, s) for s in FALLS]
    assert [n for _, n in found] == [1] * SIZE
    for jump, _ in found:
        assert jump.drop == pytest.approx(LN2 / 15) == watched_rows.one_row(row)
    # Straight from ln 2 to 0 in one interval: 10 to 90 % takes eight tenths of it.
    widths = watched_rows.row_widths(runs(2))
    assert list(widths.columns) == ["seed", "row", "step", "width"]
    assert len(widths) == 2 * SIZE
    assert widths.width.to_numpy() == pytest.approx(0.8 * EVERY)


def test_rows_that_are_never_learned_are_censored_and_have_no_width():
    row = runs(1, learned=3).iloc[0]
    falls = watched_rows.row_falls(row)
    assert [i for i, event in falls.items() if event.observed] == [0, 1, 2]
    assert falls[5].step == STEPS[-1]
    assert watched_rows.row_width(row, 5) is None
    assert watched_rows.row_widths(runs(1, learned=3)).row.tolist() == [0, 1, 2]


def test_a_single_evaluation_below_half_is_no_fall():
    made = staircase(learned=0)
    made["row_loss"] = np.array(made["row_loss"])
    made["row_loss"][20, 4] = 0.0
    made["row_loss"] = made["row_loss"].tolist()
    assert not watched_rows.row_falls(pd.Series(made))[4].observed


def test_two_rows_that_fall_together_are_one_jump_of_two_rows():
    falls = FALLS.copy()
    falls[3] = falls[2]
    found = watched_rows.jumps(runs(1, falls=falls).iloc[0])
    assert sorted(n for _, n in found) == [1] * (SIZE - 2) + [2]
    double = next(jump for jump, n in found if n == 2)
    assert double.drop == pytest.approx(2 * LN2 / 15)
    assert double.end == falls[2]
    found = row_evidence(runs(2, falls=falls))
    assert found.matching.value == 1  # two rows' worth for two rows
    assert found.single.value == pytest.approx(6 / 7)


def test_head_moves_name_the_head_and_compare_with_rows_that_wait_and_an_earlier_time():
    moves = head_moves(runs(1).iloc[0]).set_index("row")
    assert moves["head"].to_dict() == {i: i % HEADS for i in range(SIZE)}
    assert moves["step"].to_dict() == dict(enumerate(FALLS.tolist()))
    assert moves["drop"].to_numpy() == pytest.approx(1.0)
    assert moves["rise"].to_numpy() == pytest.approx(0.4)
    first, last = FALLS.argmin(), FALLS.argmax()
    assert np.isnan(moves.earlier_drop[first])  # nothing was learned before the first row
    assert moves.earlier_drop.dropna().to_numpy() == pytest.approx([0.0] * (SIZE - 1))
    for still in (moves.waiting_drop, moves.waiting_rise):
        assert np.isnan(still[last])  # nothing waits beside the last row
        assert still.dropna().to_numpy() == pytest.approx([0.0] * (SIZE - 1))


def test_rows_that_are_never_learned_wait_to_the_end():
    moves = head_moves(runs(1, learned=SIZE - 1).iloc[0])
    assert moves.waiting_drop.to_numpy() == pytest.approx([0.0] * (SIZE - 1))


@pytest.mark.parametrize("margin", [100, 300, 450])
def test_head_moves_agree_with_loops_over_random_heads(margin):
    """Every number anew, by index arithmetic on the arrays."""
    rng = np.random.default_rng(3)
    made = staircase(
        falls=np.array([600, 700, 1_200, 1_250, 2_400, 3_000, 3_900, 5_900]), learned=7
    )
    entropy = rng.uniform(0, 2, (len(STEPS), HEADS, SIZE))
    alignment = rng.uniform(0, 1, (len(STEPS), HEADS, SIZE))
    made["row_entropy"] = entropy.reshape(len(STEPS), -1).tolist()
    made["row_alignment"] = alignment.reshape(len(STEPS), -1).tolist()
    falls = {i: e.step for i, e in watched_rows.row_falls(pd.Series(made)).items() if e.observed}
    assert len(falls) == 7

    def change(values, step):
        before, after = (step - margin) // EVERY, (step + margin) // EVERY
        return values[min(int(after), len(STEPS) - 1)] - values[max(int(before), 0)]

    for line in head_moves(pd.Series(made), margin).itertuples():
        drop, rise = -change(entropy, line.step), change(alignment, line.step)
        assert line.head == drop[:, line.row].argmax()
        assert line.drop == pytest.approx(drop[line.head, line.row])
        assert line.rise == pytest.approx(rise[line.head, line.row])
        waiting = [j for j in range(SIZE) if falls.get(j, 9e9) - line.step >= 2 * margin]
        assert line.waiting_drop == pytest.approx(np.mean([drop[:, j].max() for j in waiting]))
        rises = [rise[drop[:, j].argmax(), j] for j in waiting]
        assert line.waiting_rise == pytest.approx(np.mean(rises))
        earlier = [step for step in falls.values() if line.step - step >= 2 * margin]
        if earlier:
            at_earlier = -change(entropy, max(earlier))[:, line.row]
            assert line.earlier_drop == pytest.approx(at_earlier.max())
        else:
            assert math.isnan(line.earlier_drop)


def every_query_moves(row):
    """The row with all heads turning sharp, and towards the inputs, at every row's step."""
    fallen = sum((step <= STEPS).astype(float) for step in FALLS)
    row["row_entropy"] = np.repeat(2 - 0.1 * fallen[:, None], HEADS * SIZE, 1).tolist()
    row["row_alignment"] = np.repeat(0.1 + 0.1 * fallen[:, None], HEADS * SIZE, 1).tolist()
    return row


def test_heads_that_move_as_much_for_rows_that_wait_are_seen():
    moves = head_moves(pd.Series(every_query_moves(staircase())))
    for own, waiting in (("drop", "waiting_drop"), ("rise", "waiting_rise")):
        assert moves[own].to_numpy() == pytest.approx(0.1)
        assert moves[waiting].dropna().to_numpy() == pytest.approx([0.1] * (SIZE - 1))
    assert moves.earlier_drop.dropna().to_numpy() == pytest.approx([0.1] * (SIZE - 1))
    verdict = judge_drops_are_rows(
        pd.DataFrame([every_query_moves(staircase(s)) for s in range(3)])
    )
    assert verdict.status == "partly"  # the drops are rows, the heads prove nothing
    assert "entropy drops 0.00 [" in verdict.evidence


def test_the_earlier_time_is_the_last_one_before():
    """A query whose entropy falls at the row before it, and not after, has that as its own."""
    made = staircase()
    entropy = np.full((len(STEPS), HEADS, SIZE), 2.0)
    first, second, last = np.argsort(FALLS)[[0, 1, -1]]
    entropy[FALLS[first] <= STEPS, 0, second] = 1.5
    entropy[FALLS[last] <= STEPS, 0, second] = 0.5
    made["row_entropy"] = entropy.reshape(len(STEPS), -1).tolist()
    moves = head_moves(pd.Series(made)).set_index("row")
    assert moves.earlier_drop[second] == pytest.approx(0.5)


def test_a_general_fall_of_entropy_hides_a_row_from_the_earlier_time_only():
    """As in training: all entropies fall early. Rows that wait share that, earlier times do not."""
    made = staircase()
    entropy = np.array(made["row_entropy"])
    made["row_entropy"] = (entropy + 3 * np.exp(-STEPS / 400)[:, None]).tolist()
    heads = head_evidence([pd.Series(made)])
    assert heads.entropy_gain.value == pytest.approx(1.0)
    # The trend loses f(s) across the fall at s; over rows f(s) - f(s - 600) telescopes.
    at_first, at_last = (
        3 * (math.exp(-(s - 300) / 400) - math.exp(-(s + 300) / 400)) for s in FALLS[[0, -1]]
    )
    assert heads.earlier_gain.value == pytest.approx(1 + (at_last - at_first) / (SIZE - 1))
    assert heads.earlier_gain.value < 0.85


def test_rows_that_all_fall_together_have_nothing_to_be_compared_with():
    together = np.full(SIZE, 1_000)
    moves = head_moves(runs(1, falls=together).iloc[0])
    assert moves["drop"].notna().all()
    assert moves[["waiting_drop", "waiting_rise", "earlier_drop"]].isna().all(axis=None)
    verdict = judge_drops_are_rows(runs(3, falls=together))
    assert "a head's entropy drops unknown nats more" in verdict.evidence
    assert verdict.status == "not reproduced"  # 3 of 3 drops match: 29 % at least


def test_the_gains_have_a_line_a_margin():
    rows = pd.DataFrame([staircase(s, entropy_drop=d) for s, d in enumerate((0.8, 1.0, 1.2))])
    table = gains_by_margin(rows, (100, 300, 350))
    assert table.iloc[:, 0].tolist() == [100, 300, 350]
    assert table.iloc[:, 1].tolist() == ["1.00 [0.50, 1.50]"] * 3
    assert table.iloc[:, 2].tolist() == ["0.40 [0.20, 0.60]"] * 3
    # At 350 steps the next row, 600 later, is too close: the last two rows have none that waits.
    assert table["rows"].tolist() == [21, 21, 18]
    assert table["rows with one"].tolist() == [21, 21, 18]
    assert gains_by_margin(runs(3, learned=0), (100,)).empty


def test_chance_alignment_counts_the_inputs_that_a_query_may_read():
    row = pd.Series({"state_size": 8, "row_weight": 3, "seed": 5})
    chance = moving_heads.chance_alignment(row)
    assert chance.to_dict() == pytest.approx({i: 3 / (8 + i) for i in range(8)})


def test_a_staircase_of_rows_with_moving_heads_reproduces_the_claim():
    rows = pd.DataFrame([staircase(s, entropy_drop=d) for s, d in enumerate((0.8, 1.0, 1.2))])
    verdict = judge_drops_are_rows(rows)
    assert verdict.status == "reproduced"
    assert verdict.n == 3
    # 24 of 24 drops: Clopper–Pearson's lower end is the 2.5 % point of Beta(24, 1).
    low = stats.beta.ppf(0.025, 24, 1)
    share = f"100% [{low:.0%}, 100%]"
    assert verdict.evidence.startswith(
        f"Of 24 abrupt drops {share} have the size of the rows that fall in them and {share} are "
        "single rows; "
    )
    assert "falls within 40 [40, 40] steps" in verdict.evidence
    assert "24 of 24 learned rows fell in one" in verdict.evidence
    # Student's t of 0.8, 1.0 and 1.2: 4.303 · 0.2/√3 either way. Attention: 0.4 of it.
    assert "From 300 steps before its fall to 300 after" in verdict.evidence
    assert "1.00 [0.50, 1.50] nats more" in verdict.evidence
    assert "rises 0.40 [0.20, 0.60] more" in verdict.evidence
    assert "(entropy: in 21 of 21 rows)" in verdict.evidence  # nothing waits beside the last row
    assert verdict.evidence.endswith(
        "earlier time the entropy's gain is 1.00 [0.50, 1.50] nats (21 rows)."
    )
    found = row_evidence(rows)
    assert (found.n_runs, found.n_rows, found.n_jumps) == (3, 24, 24)
    assert found.width == (40, 40, 40)


def test_drops_of_two_rows_match_but_are_not_single():
    """Rows fall in pairs: every drop has its rows' size, and none is one row."""
    verdict = judge_drops_are_rows(runs(6, falls=np.repeat(FALLS[::2], 2)))
    high = stats.beta.ppf(0.975, 1, 24)  # Clopper–Pearson for 0 of 24
    assert f"and 0% [0%, {high:.0%}] are single rows" in verdict.evidence
    assert verdict.status == "partly"


def test_a_head_that_turns_sharp_on_the_wrong_inputs_is_no_evidence():
    made = pd.DataFrame([staircase(seed) for seed in range(3)])
    made["row_alignment"] = [np.full((len(STEPS), HEADS * SIZE), 0.2).tolist()] * 3
    assert judge_drops_are_rows(made).status == "partly"


NO_MATCH = {"total_falls": FALLS[:3], "rows_a_drop": 2}
"""Each drop of the total loss is twice the row that falls in it."""
ELSEWHEN = {"total_falls": FALLS + 300}
"""The total loss drops while no row falls."""


@pytest.mark.parametrize(
    ("how", "status", "share"),
    [
        ({"entropy_drop": 0.0}, "partly", "100%"),
        (NO_MATCH, "partly", "0%"),
        (ELSEWHEN, "partly", "0%"),
        (NO_MATCH | {"entropy_drop": 0.0}, "not reproduced", "0%"),
        (ELSEWHEN | {"entropy_drop": -0.5}, "not reproduced", "0%"),
    ],
    ids=["heads still", "wrong size", "wrong time", "neither", "heads blur"],
)
def test_what_is_missing_from_the_staircase_lowers_the_verdict(how, status, share):
    verdict = judge_drops_are_rows(runs(3, **how))
    assert verdict.status == status
    assert re.match(rf"Of \d+ abrupt drops {share} \[", verdict.evidence)
    assert reads_well(verdict.evidence)


def test_rows_that_fade_without_a_jump_are_no_drops():
    made = []
    for row in runs(3).to_dict("records"):
        slow = np.linspace(LN2, LN2 * 7 / 15, len(STEPS))
        made.append(row | {"eval_loss": slow.tolist()})
    verdict = judge_drops_are_rows(pd.DataFrame(made))
    assert verdict.status == "partly"  # the heads still move
    assert verdict.evidence.startswith("No abrupt drop of the loss was found;")
    assert reads_well(verdict.evidence)


@pytest.mark.parametrize(
    ("rows", "learning"),
    [(runs(3, learned=0), 0), (runs(3, learned=1), 0), (runs(1), 1)],
    ids=["nothing learned", "one row", "one run"],
)
def test_too_little_is_no_test_of_rows(rows, learning):
    verdict = judge_drops_are_rows(rows)
    assert (verdict.status, verdict.n) == ("not tested here", learning)
    assert f"of {len(rows)} recorded {learning} did so" in verdict.evidence


def test_runs_that_learned_nothing_do_not_count():
    rows = pd.concat([runs(2), runs(4, learned=0)])
    verdict = judge_drops_are_rows(rows)
    assert verdict.n == 2
    assert "Of 16 abrupt drops" in verdict.evidence


def test_the_headline_counts_runs_waits_and_rows():
    rows = pd.concat([runs(2), runs(1, learned=3), runs(1, learned=0)]).assign(steps=6_000)
    text = plateau.headline_sentence(rows)
    half = stats.beta.ppf([0.025, 0.975], [2, 3], [3, 2])  # Clopper-Pearson for 2 of 4
    assert (
        f"2 of 4 runs reach the floor within 6,000 steps (50% [{half[0]:.0%}, {half[1]:.0%}])"
        in (text)
    )
    assert "first half row is learned at 600 [600, " in text
    assert "learns 5.5 of its 8 rows (median; 0 to 8)" in text  # 8, 8, 3 and 0
    assert reads_well(text)


@pytest.mark.parametrize("rows", [pd.DataFrame(), runs(1).assign(steps=6_000)[:0]])
def test_a_headline_without_runs_says_so(rows):
    assert plateau.headline_sentence(rows) == "No run of this cell is recorded yet."


def test_the_width_sentence_counts_rows_that_are_still_falling_at_the_end():
    seeds = [0, 0, 1, 1]
    steps, widths = [1_000, 2_000, 3_000, 4_000], [100.0, 200.0, 300.0, 500.0]
    done = pd.DataFrame({"seed": seeds, "row": [0, 1, 0, 1], "step": steps, "width": widths})
    text = width_sentence(done)
    assert "1.00 over 4 rows of 2 runs" in text
    assert text.endswith("150 steps in the earlier half of the rows and 400 in the later half.")
    still = pd.concat([done, done.assign(step=5_000, width=math.nan).head(2)])
    assert width_sentence(still).endswith(
        "400 in the later half; 2 more rows fell half-way but were still falling at the end, so "
        "the later number is a lower bound."
    )


def test_waiting_times_are_both_events_in_the_book_s_colours():
    events, colours = plateau.waiting_times(pd.concat([runs(1), runs(1, learned=2)]))
    assert [(e.step, e.observed) for e in events["first half row"]] == [(600, True), (600, True)]
    assert [(e.step, e.observed) for e in events["all rows"]] == [(4_800, True), (6_000, False)]
    assert colours == WAIT_COLOURS


# --- the bias removes the plateau --------------------------------------------------------


def biased(strength, first, solved, steps=10_000, **changes):
    """Rows of one strength: steps of the first half row and of the floor, None where not seen."""
    return [
        {
            "state_size": 16,
            "row_weight": 3,
            "muon_lr": 0.005,
            "attention_bias": strength,
            "seed": seed,
            "steps": steps,
            "plateau_end": a,
            "stopped_at": steps if b is None else b,
            "solved": b is not None,
            "final_loss": 0.336 if b else 0.6,
            "row_accuracy": [1.0] * 16 if b else [0.95] * 4 + [0.5] * 12,
        }
        | changes
        for seed, (a, b) in enumerate(zip(first, solved, strict=True))
    ]


def judged(*groups):
    verdict = judge_bias_removes_plateau(pd.DataFrame([*chain(*groups)]))
    assert reads_well(verdict.evidence)
    return verdict


NEVER = [None] * 5
LATE = [3_000, 3_200, 3_500, 3_900, 4_400]
FAST = biased(8.0, [100, 100, 150, 100, 100], [500, 600, 650, 700, 800])


def test_no_wait_with_bias_and_a_long_one_without_reproduces_the_claim():
    verdict = judged(biased(0.0, LATE, [6_000, 6_500, 7_000, 8_000, 9_000]), FAST)
    assert (verdict.status, verdict.n) == ("reproduced", 10)
    assert "all rows are learned: 650 [500, 800] steps (5 of 5 runs)" in verdict.evidence
    assert "without bias 7,000 [6,000, 9,000] steps (5 of 5 runs)" in verdict.evidence
    assert "half row is learned: 100 [100, 150] steps (5 of 5 runs)" in verdict.evidence
    assert "without bias 3,500 [3,000, 4,400] steps (5 of 5 runs)" in verdict.evidence
    assert "less than half as long with bias" in verdict.evidence


def test_the_ratio_is_that_of_the_means_with_a_t_interval_on_the_log_scale():
    without, with_bias = [6_000, 6_500, 7_000, 8_000, 9_000], [500, 600, 650, 700, 800]
    rows = pd.DataFrame(biased(0.0, LATE, without) + FAST)
    effect = bias_effect(rows, "all rows")
    relative = [np.std(x, ddof=1) / np.sqrt(5) / np.mean(x) for x in (without, with_bias)]
    factor = math.exp(stats.t.ppf(0.975, 4) * math.hypot(*relative))
    ratio = np.mean(with_bias) / np.mean(without)
    assert effect.ratio == pytest.approx((ratio, ratio / factor, ratio * factor))
    # Log-rank by hand: at the j-th of the five early events 5-j of the 10-j at risk are biased.
    expected = sum((5 - j) / (10 - j) for j in range(5))
    variance = sum((5 - j) / (10 - j) * 5 / (10 - j) for j in range(5))
    p = stats.chi2.sf((5 - expected) ** 2 / variance, 1)
    assert effect.p_value == pytest.approx(p)


def test_a_group_that_never_solves_bounds_the_ratio_by_its_exact_solve_rate():
    rows = pd.DataFrame(biased(0.0, LATE, NEVER) + FAST)
    effect = bias_effect(rows, "all rows")
    mean = np.mean([500, 600, 650, 700, 800])
    half = stats.t.ppf(0.975, 4) * np.std([500, 600, 650, 700, 800], ddof=1) / np.sqrt(5)
    at_most = 1 - 0.025 ** (1 / 5)  # Clopper–Pearson's upper end for 0 of 5
    expected = (mean / 10_000, (mean - half) / 10_000, (mean + half) / (10_000 * (1 - at_most)))
    assert effect.ratio == pytest.approx(expected)
    verdict = judged(biased(0.0, LATE, NEVER), FAST)
    assert verdict.status == "reproduced"
    assert "without bias not within the 10,000 steps watched (0 of 5 runs)" in verdict.evidence
    ratio = f"{expected[0]:.2f} [{expected[1]:.2f}, {expected[2]:.2f}]"
    assert f"ratio of mean times {ratio}, log-rank p = " in verdict.evidence


@pytest.mark.parametrize(
    ("first_without", "status", "words"),
    [
        ([100, 150, 100, 100, 100], "partly", "not shown to be shorter with bias"),
        ([150, 200, 150, 200, 200], "partly", "shorter with bias, not shown to be halved"),
        ([350, 400, 350, 400, 400], "reproduced", "less than half as long with bias"),
    ],
    ids=["as early", "a little later", "much later"],
)
def test_a_first_row_that_falls_about_as_early_without_bias_makes_it_partly(
    first_without, status, words
):
    verdict = judged(biased(0.0, first_without, NEVER), FAST)
    assert verdict.status == status
    assert f": the plateau before the first row is {words}. The harder cell" in verdict.evidence


def test_faster_but_not_almost_immediate_is_partly():
    slow = biased(8.0, [100, 100, 150, 100, 100], [1_500, 1_600, 1_650, 1_700, 1_800])
    verdict = judged(biased(0.0, LATE, NEVER), slow)
    assert verdict.status == "partly"
    assert "learned: 1,650 [1,500, 1,800] steps" in verdict.evidence


def test_a_sooner_first_row_alone_is_partly():
    verdict = judged(biased(0.0, LATE, NEVER), biased(8.0, [100, 100, 150, 100, 100], NEVER))
    assert verdict.status == "partly"
    assert (
        "learned: not within the 10,000 steps watched (0 of 5 runs); without bias not within"
        in (verdict.evidence)
    )
    assert "1.00 (no interval)" in verdict.evidence


def test_no_difference_is_not_reproduced():
    times = [5_000, 6_000, 7_000, 8_000, 9_000]
    verdict = judged(biased(0.0, LATE, times), biased(8.0, LATE, times))
    assert verdict.status == "not reproduced"
    assert "ratio of mean times 1.00 [" in verdict.evidence


def test_nothing_seen_at_all_reads_well_and_is_not_reproduced():
    verdict = judged(biased(0.0, NEVER, NEVER), biased(8.0, NEVER, NEVER))
    assert verdict.status == "not reproduced"
    assert verdict.evidence.count("not within the 10,000 steps watched (0 of 5 runs)") == 4


def test_a_slower_strongest_bias_decides_not_the_best_one():
    strongest = biased(8.0, LATE, NEVER)
    middle = biased(4.0, [100] * 5, [600] * 5)
    assert judged(biased(0.0, LATE, NEVER), middle).status == "reproduced"
    assert judged(biased(0.0, LATE, NEVER), middle, strongest).status == "not reproduced"


@pytest.mark.parametrize(
    "groups",
    [
        (FAST,),
        (biased(0.0, LATE, NEVER),),
        (biased(0.0, LATE[:1], [None]), FAST),
        (biased(0.0, LATE, NEVER), FAST[:1]),
        (biased(0.0, LATE, NEVER, row_weight=8), biased(8.0, LATE, NEVER, row_weight=8)),
        (biased(0.0, LATE, NEVER, muon_lr=0.01), biased(8.0, LATE, NEVER, muon_lr=0.01)),
    ],
    ids=["no control", "no bias", "one control", "one biased", "other cell", "other rate"],
)
def test_too_little_is_no_test_of_the_bias(groups):
    verdict = judged(*groups)
    assert (verdict.status, verdict.n) == ("not tested here", 0)


def test_few_runs_do_not_reproduce_by_luck():
    """Two against two, even if far apart: 0 of 2 says at most 84 % would solve."""
    verdict = judged(biased(0.0, LATE[:2], NEVER[:2]), FAST[:2])
    assert verdict.status != "reproduced"


def test_a_run_that_solves_at_the_last_step_is_like_one_that_does_not():
    rows = pd.DataFrame(biased(0.0, LATE, [None] * 4 + [10_000]) + FAST)
    same = pd.DataFrame(biased(0.0, LATE, NEVER) + FAST)
    assert bias_effect(rows, "all rows").ratio == bias_effect(same, "all rows").ratio


def test_dose_response_has_a_line_a_wait_and_strength():
    rows = pd.DataFrame(biased(8.0, [100, 150, 100], [600, 700, None]) + biased(0.0, LATE, NEVER))
    table = attention_bias.dose_response(rows).set_index(["wait", "attention_bias"])
    assert table.index.tolist() == [(w, c) for w in WAIT_COLOURS for c in (0.0, 8.0)]
    assert table.loc[("first half row", 0.0), "median"] == np.median(LATE)
    assert table.loc[("first half row", 8.0), "median"] == 100
    assert table.loc[("all rows", 8.0), "median"] == 700  # at 600 two thirds are left, at 700 one
    assert table.loc[("all rows", 0.0), "median"] == math.inf
    assert table["n"].tolist() == [5, 3, 5, 3]
    assert table["observed"].tolist() == [5, 3, 0, 2]


HARD = {"row_weight": 8}


def test_the_hard_cell_s_table_says_what_is_missing():
    rows = pd.DataFrame(
        biased(4.0, [900, None], [2_000, None], **HARD)
        + biased(4.0, [None] * 3, [None] * 3, **HARD, muon_lr=0.01)
        + FAST
    )
    table = attention_bias.hard_cell_table(rows, "cpu").set_index(["attention_bias", "muon_lr"])
    assert table.n.to_dict() == {(0, 0.005): 0, (4, 0.0025): 0, (4, 0.005): 2, (4, 0.01): 3}
    assert (table.n + table.missing).tolist() == [5, 3, 5, 3]
    assert table.solved.tolist() == [0, 0, 1, 0]
    assert table.plateaus_ended.tolist() == [0, 0, 1, 0]
    assert table.rows_learned[table.n > 0].tolist() == [10, 4]
    assert table.median_loss[table.n > 0].to_numpy() == pytest.approx([0.468, 0.6])
    assert table.loc[table.n == 0, ["median_loss", "rows_learned"]].isna().all(axis=None)
    smaller = pd.DataFrame(biased(4.0, [900], [2_000], **HARD, state_size=8))
    more = attention_bias.hard_cell_table(pd.concat([rows, smaller]), "cpu")
    assert more.equals(table.reset_index())
    assert attention_bias.hard_cell_table(rows, "quick").empty  # it has no such cell


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        (
            [biased(4.0, LATE[:2], [2_000, None], **HARD), biased(0.0, LATE[:1], [None], **HARD)],
            "In the harder cell, s = 8, with c = 4 1 of 2 runs reach the floor (50% [1%, 99%]) and "
            "10.0 of 16 rows are learned on average; without bias 0 of 1 runs reach the floor "
            "(0% [0%, 98%]) and 4.0 of 16 rows are learned on average.",
        ),
        (
            [biased(4.0, LATE, NEVER, **HARD)],
            "(0% [0%, 52%]) and 4.0 of 16 rows are learned on average; without bias no run is "
            "recorded.",
        ),
        (
            [biased(0.0, LATE, NEVER, **HARD), biased(4.0, LATE, NEVER, **HARD, muon_lr=0.01)],
            "The harder cell, s = 8, is not recorded with bias at this rate.",
        ),
        ([], "The harder cell, s = 8, is not recorded with bias at this rate."),
    ],
    ids=["both", "no control", "no bias at the rate", "nothing"],
)
def test_the_verdict_tells_what_is_known_of_the_hard_cell(hard, words):
    verdict = judged(biased(0.0, LATE, NEVER), FAST, *hard)
    assert verdict.evidence.endswith(words)
    assert (verdict.status, verdict.n) == ("reproduced", 10)  # it decides nothing


# --- medium sparsity is hardest ----------------------------------------------------------


def swept(loss, size=16, weights=None, seeds=3, noise=0.01, first_bit=1.0):
    """Rows whose final loss is `loss(s)` plus -noise, 0, +noise over the seeds."""
    rng = count()
    return pd.DataFrame(
        [
            {
                "state_size": size,
                "row_weight": s,
                "seed": seed,
                "final_loss": loss(s) + noise * (next(rng) % 3 - 1),
                "solved": loss(s) < 0.34,
                "row_accuracy": [first_bit] + [1.0] * (size - 1),
            }
            for s in weights or range(1, size + 1)
            for seed in range(seeds)
        ]
    )


def inverted_u(s, size=16):
    return 0.335 + 0.3 * (1 - abs(2 * s - size) / size)


def test_regions_are_the_ends_and_the_middle_third():
    regions = {s: sparsity.region(16, s) for s in range(1, 17)}
    assert [s for s, r in regions.items() if r == "sparse"] == [1, 2]
    assert [s for s, r in regions.items() if r == "medium"] == [6, 7, 8, 9, 10]
    assert [s for s, r in regions.items() if r == "dense"] == [15, 16]


@pytest.mark.parametrize(
    ("loss", "status"),
    [
        (inverted_u, "reproduced"),
        (lambda s: 0.335 + 0.02 * s, "partly"),
        (lambda s: 0.675 - 0.02 * s, "partly"),
        (lambda s: 0.5, "not reproduced"),
        (lambda s: 1.0 - inverted_u(s), "not reproduced"),
    ],
    ids=["inverted U", "rising", "falling", "flat", "U"],
)
def test_the_shape_over_s_decides(loss, status):
    verdict = judge_medium_is_hardest(swept(loss))
    assert verdict.status == status
    assert verdict.n == 48
    assert reads_well(verdict.evidence)


def test_every_large_size_must_agree_and_small_ones_do_not_count():
    good, flat = swept(inverted_u), swept(lambda s: 0.5, size=32)
    small = swept(lambda s: 0.33, size=8)
    assert judge_medium_is_hardest(pd.concat([good, flat])).status == "partly"
    verdict = judge_medium_is_hardest(pd.concat([good, small]))
    assert (verdict.status, verdict.n) == ("reproduced", 48)
    both = judge_medium_is_hardest(pd.concat([good, swept(lambda s: inverted_u(s, 32), size=32)]))
    assert (both.status, both.n) == ("reproduced", 48 + 96)
    assert "S = 16: final loss" in both.evidence
    assert "; S = 32: final loss" in both.evidence


def test_identical_losses_have_no_rank_correlation():
    flat = swept(lambda s: 0.5, noise=0)
    assert sparsity.difficulty_sentence(flat) == ""
    verdict = judge_medium_is_hardest(flat)
    assert verdict.status == "not reproduced"
    assert verdict.evidence.endswith("copying it into all others ends at 0.358 nats).")
    assert "minus that of s ≤ 2 0.000 [0.000, 0.000] nats" in verdict.evidence


@pytest.mark.parametrize(
    ("first_bits", "status", "words"),
    [
        ((1.0, 1.0, 0.95), "reproduced", "3 of 3 runs"),
        ((1.0, 0.5, 0.95), "reproduced", "2 of 3 runs"),
        ((1.0, 0.5, 0.9), "partly", "1 of 3 runs"),
        ((0.5, 0.5, 0.5), "partly", "0 of 3 runs"),
    ],
    ids=["learned", "most learned", "most copied", "all copied"],
)
def test_a_dense_end_that_copies_its_first_bit_is_no_inverted_u(first_bits, status, words):
    rows = swept(inverted_u).set_index(["row_weight", "seed"])
    for seed, accuracy in enumerate(first_bits):
        rows.at[(16, seed), "row_accuracy"] = [accuracy] + [1.0] * 15
    verdict = judge_medium_is_hardest(rows.reset_index())
    assert verdict.status == status
    expected = f"at s = S the first output bit is learned in {words} (guessing it and copying it"
    assert expected in verdict.evidence


def test_the_copying_shortcut_at_any_judged_size_lowers_the_verdict():
    copied = swept(lambda s: inverted_u(s, 32), size=32, first_bit=0.5)
    verdict = judge_medium_is_hardest(pd.concat([swept(inverted_u), copied]))
    assert verdict.status == "partly"
    assert "in 3 of 3 runs" in verdict.evidence
    assert "in 0 of 3 runs" in verdict.evidence


def test_a_dense_end_without_a_run_at_s_equal_to_the_size_shows_no_parity():
    verdict = judge_medium_is_hardest(swept(inverted_u, weights=[1, 2, 7, 8, 15]))
    assert verdict.status == "partly"
    assert "; no run at s = S is recorded that could tell the parity from copying" in (
        verdict.evidence
    )
    assert reads_well(verdict.evidence)


@pytest.mark.parametrize(
    "rows",
    [
        swept(inverted_u, size=8),
        swept(inverted_u, weights=[1, 8]),
        swept(inverted_u, weights=[1, 8, 16], seeds=1),
        swept(inverted_u, weights=[1, 4, 16]),
    ],
    ids=["small size", "no dense end", "single runs", "no middle"],
)
def test_too_little_is_no_test_of_sparsity(rows):
    verdict = judge_medium_is_hardest(rows)
    assert verdict.status == "not tested here"


def test_single_runs_of_two_cells_a_region_are_enough():
    rows = swept(inverted_u, weights=[1, 2, 7, 8, 15, 16], seeds=1)
    assert judge_medium_is_hardest(rows).status == "reproduced"


def test_medium_minus_agrees_with_the_analytic_interval():
    rng = np.random.default_rng(5)
    rows = swept(inverted_u, weights=[2, 8], seeds=60)
    rows["final_loss"] += rng.normal(0, 0.05, len(rows))
    medium, sparse = (rows.final_loss[rows.row_weight == s].to_numpy() for s in (8, 2))
    found = sparsity.medium_minus(rows, "sparse")
    difference = medium.mean() - sparse.mean()
    error = math.hypot(medium.std() / math.sqrt(60), sparse.std() / math.sqrt(60))
    assert found.value == pytest.approx(difference)
    assert found.low == pytest.approx(difference - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(difference + 1.96 * error, abs=0.15 * error)


def ended(medium, sparse):
    """Rows of S = 16 with these final losses at s = 8 and s = 2."""
    pairs = [(8, x) for x in medium] + [(2, x) for x in sparse]
    return pd.DataFrame(pairs, columns=["row_weight", "final_loss"]).assign(state_size=16)


def test_medium_minus_is_welch_s_interval():
    """By hand: variances 0.01 and 0.0002 over 3 and 2 runs; Welch and Satterthwaite's df."""
    found = sparsity.medium_minus(ended([0.5, 0.6, 0.7], [0.34, 0.36]), "sparse")
    a, b = 0.01 / 3, 0.0002 / 2
    half = stats.t.ppf(0.975, (a + b) ** 2 / (a**2 / 2 + b**2 / 1)) * math.sqrt(a + b)
    assert found == pytest.approx((0.25, 0.25 - half, 0.25 + half))


def test_medium_minus_of_runs_without_spread():
    assert sparsity.medium_minus(ended([0.5] * 3, [0.25] * 3), "sparse") == (0.25, 0.25, 0.25)
    value, *interval = sparsity.medium_minus(ended([0.5] * 2, [0.25] * 3), "sparse")
    assert value == 0.25
    assert np.isnan(interval).all()
    # One constant region: the other's t interval with its own degrees of freedom.
    found = sparsity.medium_minus(ended([0.5] * 3, [0.2, 0.25, 0.3]), "sparse")
    half = stats.t.ppf(0.975, 2) * 0.05 / math.sqrt(3)
    assert found == pytest.approx((0.25, 0.25 - half, 0.25 + half))
    with pytest.raises(ParameterError, match="at least two runs in each region"):
        sparsity.medium_minus(ended([0.5] * 3, [0.25]), "sparse")


def test_the_evidence_gives_the_differences():
    rows = swept(inverted_u)
    mean = rows.groupby("row_weight").final_loss.mean()
    medium = mean.loc[6:10].mean()
    evidence = judge_medium_is_hardest(rows).evidence
    assert f"minus that of s ≤ 2 {medium - mean.loc[1:2].mean():.3f} [" in evidence
    assert f"minus that of s ≥ S-1 {medium - mean.loc[15:16].mean():.3f} [" in evidence


def test_by_row_weight_summarises_each_cell():
    rows = pd.concat([swept(inverted_u), swept(lambda s: 0.33, size=8, seeds=2)])
    table = sparsity.by_row_weight(rows).set_index(["state_size", "row_weight"])
    assert len(table) == 24
    line = table.loc[(16, 8)]
    assert line["n"] == 3
    assert line["mean_loss"] == pytest.approx(0.635)
    assert (line["min_loss"], line["max_loss"]) == pytest.approx((0.625, 0.645))
    assert line["excess"] == pytest.approx(0.635 - 15 / 31 * LN2)
    assert line["log_subsets"] == pytest.approx(math.log(12_870))  # 16 choose 8
    assert line["solve_rate"] == 0
    assert line["solve_high"] == pytest.approx(1 - 0.025 ** (1 / 3))
    solved = table.loc[(8, 3)]
    assert (solved["n"], solved["solve_rate"]) == (2, 1)
    assert solved["solve_low"] == pytest.approx(0.025 ** (1 / 2))
    excess = sparsity.excess_tables(rows)
    assert list(excess) == ["S = 8", "S = 16"]
    of_16 = excess["S = 16"].set_index("row_weight").loc[8]
    assert of_16.mean_loss == pytest.approx(of_16.excess)
    assert of_16.max_loss - of_16.min_loss == pytest.approx(0.02)
    s, shares = sparsity.solve_rates(rows)["S = 16"]
    assert s == list(range(1, 17))
    assert shares[7] == (line["solve_rate"], line["solve_low"], line["solve_high"])
    x, y = sparsity.against_subsets(rows)["S = 8"]
    assert x.to_numpy() == pytest.approx(np.log(comb(8, np.arange(1, 9))))
    assert y.to_numpy() == pytest.approx(0.33 - 7 / 15 * LN2, abs=0.006)


def test_the_rank_correlation_is_that_of_the_largest_size():
    by_subsets = swept(lambda s: 0.34 + 0.02 * math.log(comb(16, s)), noise=0)
    text = sparsity.difficulty_sentence(pd.concat([by_subsets, swept(inverted_u, size=8)]))
    assert text == (
        "Rank correlation of excess loss with ln C(S, s) at S = 16: 1.00 over 16 cells."
    )
    against = swept(lambda s: 0.6 - 0.02 * math.log(comb(16, s)), noise=0)
    assert "-1.00" in sparsity.difficulty_sentence(against)
    assert sparsity.difficulty_sentence(swept(inverted_u, weights=[1, 2, 3])) == ""


def test_the_dense_end_stands_beside_both_losses_it_may_end_at():
    copied = swept(inverted_u, first_bit=0.5)
    rows = pd.concat([copied, swept(lambda s: 0.4, size=8, seeds=2, noise=0)])
    assert {k: len(v) for k, v in sparsity.dense_end(rows).items()} == {"S = 8": 2, "S = 16": 3}
    table = sparsity.dense_table(rows).set_index("map")
    line = table.loc["S = 16, s = S"]
    assert line["n"] == 3
    assert line["final loss"] == pytest.approx(0.335)
    assert line["floor"] == pytest.approx(15 / 31 * LN2)
    assert line["floor + ln 2/(2S-1)"] == pytest.approx(16 / 31 * LN2)
    assert line["accuracy of the first bit"] == 0.5
    assert line["of the others"] == 1.0
    assert table.loc["S = 8, s = S", "final loss"] == pytest.approx(0.4)


def test_a_dense_end_that_is_not_recorded_draws_an_empty_labelled_panel():
    [ax] = bit_accuracy(sparsity.dense_end(swept(inverted_u, weights=[1, 8])), {}).axes
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (
        "not recorded yet",
        "output bit",
        "accuracy",
    )
    assert not ax.lines
    plt.close("all")


def test_the_paper_s_losses_are_those_of_the_fact_sheet_above_the_floor():
    assert sparsity.PAPER_FINAL_LOSS[8] == 0.670
    assert sparsity.PAPER_EXCESS[8] == pytest.approx(0.670 - LinearMap(16, 8).floor)


# --- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        ((1_234.4, 1_000, 2_000), "1,234 [1,000, 2,000] steps"),
        ((600, 500, math.inf), "600 [500, not seen] steps"),
        ((600, math.nan, math.nan), "600 (no interval) steps"),
        ((math.inf, math.inf, math.inf), "not within the 10,000 steps watched"),
        ((math.inf, 4_350, math.inf), "not within the 10,000 steps watched (at least 4,350)"),
    ],
)
def test_times_in_words(estimate, words):
    assert steps_in_words(Estimate(*estimate), 10_000) == words


def test_numbers_in_words():
    assert with_interval(Estimate(0.0649, 0.05, 0.1), ".2f") == "0.06 [0.05, 0.10]"
    assert with_interval(Estimate(0.5, 0.25, 1), ".0%") == "50% [25%, 100%]"
    assert with_interval(Estimate(0.5, math.nan, math.nan), ".2f") == "0.50 (no interval)"
    assert with_interval(evidence.UNKNOWN, ".2f") == "unknown"


def test_over_runs_leaves_out_runs_without_the_value():
    assert evidence.over_runs([1.0, math.nan, 3.0, math.inf]).value == 2
    assert evidence.over_runs([math.nan, math.inf]) is evidence.UNKNOWN
