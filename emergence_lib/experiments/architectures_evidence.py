"""What the runs of `architectures` say: the search, the tables, and the judges of A-14 and A-15.

Mixers are compared by their *excess*: the held-out loss above the best attainable one, averaged
over all steps watched. It is low for a mixer that learns soon and learns all, it exists for runs
that never solve the task, and it is paired by seed: the same map or rules and the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event, level, plateau_length
from emergence_lib.analysis.survival import Estimate, logrank, mean_interval, median_time
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import Groups, over_runs, steps_in_words, with_interval
from emergence_lib.experiments.linear_map_cell import solve_event
from emergence_lib.tasks import LinearMap

RECURRENT = ("mamba", "gated_delta", "rwkv", "mlstm", "linear_rnn")
NAMES = {
    "attention": "attention",
    "mlp_mixer": "MLP-Mixer",
    "mamba": "Mamba",
    "gated_delta": "Gated DeltaNet",
    "rwkv": "RWKV",
    "mlstm": "xLSTM (mLSTM)",
    "linear_rnn": "linear RNN",
}
TASK_NAMES = {"linear_map": "linear map", "cellular_automata": "cellular automata"}
MIN_SEEDS = 3
"""Seeds that two mixers must share for their difference to have an interval."""

PAPER_FINAL_LOSS: Mapping[int, Mapping[str, float]] = {
    3: {"mlp_mixer": 0.336, "attention": 0.341},
    5: {"mlp_mixer": 0.396, "attention": 0.595},
    7: {"mlp_mixer": 0.46, "attention": 0.586},
}
"""s → mixer → loss in nats on the linear map with S = 16 after 10,000 steps, off the paper's figure
(±0.005)."""


def excess(row: pd.Series) -> float:
    """Mean held-out loss above the attainable one over all steps watched, nats.

    The curve is joined by straight lines; a run that stopped early keeps its last loss.
    """
    steps, loss = list(row.eval_steps), list(row.eval_loss)
    if steps[-1] < row.steps:
        steps, loss = [*steps, row.steps], [*loss, loss[-1]]
    return float(np.trapezoid(loss, steps)) / steps[-1] - row.attainable


def wait(row: pd.Series) -> Event:
    """When a run got there: the linear map's floor, or half the way down on cellular automata.

    From ln C, a guess, to the attainable loss, in two evaluations in a row. All of the way would
    leave most runs without a time; the end of the plateau would not tell mixers apart, since
    with few rules the most frequent colours alone are worth as much.
    """
    if row["task"] == "linear_map":
        return solve_event(row)
    loss = pd.Series(row.eval_loss, index=row.eval_steps)
    return plateau_length(loss, level(math.log(row.colours), row.attainable, 0.5), sustain=2)


def curves(final: pd.DataFrame) -> dict[str, list[pd.Series]]:
    """Name of a mixer → held-out loss over steps, one curve a run."""
    return {
        NAMES[mixer]: [
            pd.Series(row.eval_loss, index=row.eval_steps)
            for _, row in final[final.mixer == mixer].iterrows()
        ]
        for mixer in NAMES
        if (final.mixer == mixer).any()
    }


def rate_label(lr: float, muon_lr: float | None) -> str:
    """ "AdamW 0.003", or "Muon 0.005, AdamW 0.001"."""
    adamw = f"AdamW {lr:g}"
    return adamw if pd.isna(muon_lr) else f"Muon {muon_lr:g}, {adamw}"


def with_excess(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with two more columns: rate (`rate_label`) and excess (nats)."""
    pairs = zip(rows.lr, rows.muon_lr, strict=True)
    return rows.assign(
        rate=[rate_label(*pair) for pair in pairs],
        excess=[excess(row) for _, row in rows.iterrows()],
    )


def of_task(rows: pd.DataFrame, task: str, *, search: bool) -> pd.DataFrame:
    """The search (seed 0) or the final runs (other seeds) of a task, `with_excess`."""
    return with_excess(rows[(rows.task == task) & ((rows.seed == 0) == search)])


def search_table(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """Excess in nats of each mixer (line) at each rate (column) in the search; best named last.

    Returns:
        Index mixer names; a column a rate, NaN where not recorded; "best", the rate's label.
    """
    search = of_task(rows, task, search=True)
    table = search.pivot_table(index="mixer", columns="rate", values="excess", sort=False)
    best = table.idxmin(axis=1) if len(table) else pd.Series(dtype=object)
    return table.assign(best=best).rename(index=NAMES)


def best_rates(rows: pd.DataFrame, task: str) -> dict[str, tuple[float, float | None]]:
    """mixer → (lr, muon_lr) of the least excess in the search; those recorded only."""
    best = {}
    for mixer, runs in of_task(rows, task, search=True).groupby("mixer"):
        row = runs.loc[runs.excess.idxmin()]
        muon_lr = None if pd.isna(row.muon_lr) else float(row.muon_lr)
        best[str(mixer)] = (float(row.lr), muon_lr)
    return best


def rates_sentence(rows: pd.DataFrame, task: str) -> str:
    """Whether the final runs have the rates that the search found best."""
    best = {mixer: rate_label(*rate) for mixer, rate in best_rates(rows, task).items()}
    final = of_task(rows, task, search=False).drop_duplicates("mixer").set_index("mixer").rate
    both = [mixer for mixer in final.index if mixer in best]
    if not both:
        return f"The search on the {TASK_NAMES[task]}, or its final runs, are not recorded yet."
    other = [f"{NAMES[m]} ({final[m]}, search: {best[m]})" for m in both if final[m] != best[m]]
    if not other:
        return f"Every final run on the {TASK_NAMES[task]} has the search's best rate of its mixer."
    rates = ", ".join(other)
    return f"Run on the {TASK_NAMES[task]} at another rate than the search's best: {rates}."


def final_runs(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """The final runs of a task's cell with all mixers: the sparsest map, or the fewest rules."""
    final = of_task(rows, task, search=False)
    if not len(final):
        return final
    column = {"linear_map": "row_weight", "cellular_automata": "n_rules"}[task]
    return final[final[column] == final[column].min()]


def denser_maps(rows: pd.DataFrame) -> pd.DataFrame:
    """The final runs on linear maps with more ones in a row than in the cell of `final_runs`."""
    final = of_task(rows, "linear_map", search=False)
    return final[final.row_weight > final.row_weight.min()] if len(final) else final


def many_rules(rows: pd.DataFrame) -> pd.DataFrame:
    """The final runs on automata with more rules than in the cell of `final_runs`."""
    final = of_task(rows, "cellular_automata", search=False)
    return final[final.n_rules > final.n_rules.min()] if len(final) else final


def mixer_table(final: pd.DataFrame) -> pd.DataFrame:
    """One line a mixer, least excess first.

    Args:
        final: the runs of one cell, as `final_runs` gives them.

    Returns:
        Columns mixer (its name), parameters, "got there" (how many of the runs, see `wait`),
        "after steps" (median by Kaplan–Meier, or how long it is at least), "final loss", excess
        (means, nats), "minus attention's" (excess paired by seed, in words). No times: runs that
        were recorded side by side slow each other (`benchmarks/mixers.py` has fair ones).
    """
    lines = []
    for mixer, runs in final.groupby("mixer"):
        events = [wait(row) for _, row in runs.iterrows()]
        median = median_time(events)
        lines.append(
            {
                "mixer": NAMES[str(mixer)],
                "parameters": int(runs.parameters.iloc[0]),
                "got there": f"{sum(event.observed for event in events)} of {len(events)}",
                "after steps": f"{median.value:,.0f}"
                if math.isfinite(median.value)
                else f"> {runs.steps.max():,}",
                "final loss": runs.final_loss.mean(),
                "excess": runs.excess.mean(),
                "minus attention's": with_interval(against_attention(final, str(mixer)), "+.3f"),
            }
        )
    return pd.DataFrame(lines).sort_values("excess", ignore_index=True) if lines else pd.DataFrame()


def attainable(final: pd.DataFrame) -> float:
    """Mean over runs of the best attainable loss, nats; NaN without a run."""
    return float(final.attainable.mean())


def excess_groups(rows: pd.DataFrame) -> Groups:
    """Name of a task → (names of mixers, mean excess of each, that of the runs): for the figure."""
    groups = {}
    for task, name in TASK_NAMES.items():
        final = final_runs(rows, task)
        if len(final):
            runs = [final.excess[final.mixer == mixer].tolist() for mixer in NAMES]
            groups[name] = (list(NAMES.values()), [over_runs(of) for of in runs], runs)
    return groups


def final_loss_groups(rows: pd.DataFrame) -> Groups:
    """Final loss above the floor of MLP-Mixer and attention on every map: for the figure.

    Returns:
        Names as in `paper_final_losses`; none where nothing is recorded.
    """
    final = of_task(rows, "linear_map", search=False)
    losses = {
        _map_name(mixer, s): (cell.final_loss - cell.attainable).tolist()
        for s, runs in (final.groupby("row_weight") if len(final) else ())
        for mixer in ("mlp_mixer", "attention")
        if len(cell := runs[runs["mixer"] == mixer])
    }
    if not losses:
        return {}
    means = [over_runs(values) for values in losses.values()]
    return {TASK_NAMES["linear_map"]: (list(losses), means, list(losses.values()))}


def paper_final_losses() -> dict[str, float]:
    """Name of a mixer and map → the paper's final loss above its floor, nats."""
    return {
        _map_name(mixer, s): loss - LinearMap(16, s).floor
        for s, losses in PAPER_FINAL_LOSS.items()
        for mixer, loss in losses.items()
    }


def _map_name(mixer: str, row_weight: float) -> str:
    return f"{NAMES[mixer]}, s = {row_weight:g}"


def against_attention(final: pd.DataFrame, mixer: str) -> Estimate:
    """Excess of `mixer` minus attention's, mean over the seeds that both have; above 0 is worse."""
    by_seed = final.pivot_table(index="seed", columns="mixer", values="excess")
    if mixer not in by_seed or "attention" not in by_seed:
        return over_runs([])
    return over_runs(by_seed[mixer] - by_seed.attention, mean_interval)


def _comparable(final: pd.DataFrame, mixers: Sequence[str]) -> list[str]:
    """The mixers that share at least `MIN_SEEDS` seeds with attention."""
    seeds = {mixer: set(runs.seed) for mixer, runs in final.groupby("mixer")}
    attention = seeds.get("attention", set())
    return [m for m in mixers if len(seeds.get(m, set()) & attention) >= MIN_SEEDS]


def judge_mixer_and_attention(rows: pd.DataFrame) -> Verdict:
    """A-14: the MLP-Mixer has less excess than attention on the linear map, more on the automata.

    Few rules can be told apart by fixed weights and many cannot, so the automata with most rules
    that have three seeds of both decide, and the sparsest map, which is the one with all mixers;
    all cells that have are named. "reproduced": both differences,
    paired by seed, with their whole interval on that side of 0; "partly": one of them; "not
    reproduced": neither. Without three seeds of both mixers on the linear map nothing is tested;
    without them on the automata, it is "partly" at best.
    """
    linear_map = final_runs(rows, "linear_map")
    if not _comparable(linear_map, ["mlp_mixer"]):
        return Verdict("not tested here", "Three seeds of MLP-Mixer and attention are needed.", 0)
    pair = _pair(linear_map)
    difference = against_attention(pair, "mlp_mixer")
    sooner, n = difference.high < 0, len(pair)
    parts = [
        f"Excess loss of the MLP-Mixer minus attention's on the linear map: "
        f"{with_interval(difference, '+.3f')} nats; {_times_in_words(pair)}"
    ]
    denser = denser_maps(rows)
    for s, runs in denser.groupby("row_weight"):
        if _comparable(runs, ["mlp_mixer"]):
            n += len(pair := _pair(runs))
            found = with_interval(against_attention(pair, "mlp_mixer"), "+.3f")
            parts.append(f"on the map with s = {s:g}: {found}")
    worse, on_automata = False, []
    for automata in (final_runs(rows, "cellular_automata"), many_rules(rows)):
        if not _comparable(automata, ["mlp_mixer"]):
            continue
        pair = _pair(automata)
        difference = against_attention(pair, "mlp_mixer")
        worse = difference.low > 0
        n += len(pair)
        on_automata.append(
            f"on cellular automata with {int(pair.n_rules.iloc[0])} rules: "
            f"{with_interval(difference, '+.3f')}"
        )
    parts += on_automata or ["cellular automata are not recorded with three seeds of both"]
    status = "partly" if sooner or worse else "not reproduced"
    if sooner and worse:
        status = "reproduced"
    return Verdict(status, f"{'; '.join(parts)}.", n)


def _pair(final: pd.DataFrame) -> pd.DataFrame:
    return final[final.mixer.isin(["attention", "mlp_mixer"])]


def _times_in_words(pair: pd.DataFrame) -> str:
    """Solve times of MLP-Mixer and attention, and their ratio beside the paper's."""
    events = {
        mixer: [solve_event(row) for _, row in pair[pair.mixer == mixer].iterrows()]
        for mixer in ("attention", "mlp_mixer")
    }
    watched = int(pair.steps.max())
    words = {
        mixer: f"{steps_in_words(median_time(of), watched)} ({sum(e.observed for e in of)} of "
        f"{len(of)} runs)"
        for mixer, of in events.items()
    }
    ratio = logrank(events, watched).ratios["mlp_mixer"]
    return (
        f"all rows learned after a median of {words['mlp_mixer']}, attention {words['attention']}; "
        f"ratio of mean times {with_interval(ratio, '.2f')} (the paper: almost ten times faster)"
    )


def judge_recurrent_mixers(rows: pd.DataFrame) -> Verdict:
    """A-15: recurrent mixers have more excess than attention, on both tasks.

    Each recurrent mixer with three seeds on a task is a comparison: worse or better where the whole
    interval of the paired difference says so, else undecided. "reproduced": both tasks, at least
    four in five comparisons worse and none better ("generally worse" in the paper). "partly": more
    worse than better. "not reproduced": otherwise. Fewer than three comparisons test nothing.
    """
    worse = better = total = tasks = n = 0
    parts = []
    for task in TASK_NAMES:
        final = final_runs(rows, task)
        mixers = _comparable(final, RECURRENT)
        if not mixers:
            continue
        tasks += 1
        differences = {mixer: against_attention(final, mixer) for mixer in mixers}
        worse += sum(d.low > 0 for d in differences.values())
        better += sum(d.high < 0 for d in differences.values())
        n += int(final.mixer.isin([*mixers, "attention"]).sum())
        words = [f"{NAMES[m]} {with_interval(d, '+.3f')}" for m, d in differences.items()]
        parts.append(f"on the {TASK_NAMES[task]}: {', '.join(words)}")
        total += len(mixers)
    if total < 3:
        return Verdict(
            "not tested here", "Three recurrent mixers with three seeds each are needed.", 0
        )
    generally = worse >= 0.8 * total and not better
    status = "partly" if worse > better else "not reproduced"
    if generally and tasks == len(TASK_NAMES):
        status = "reproduced"
    missing = "" if tasks == len(TASK_NAMES) else " Only one of the two tasks is recorded."
    return Verdict(
        status,
        f"Excess loss minus attention's in nats, {'; '.join(parts)}. Of {total} comparisons "
        f"{worse} are worse than attention and {better} better.{missing}",
        n,
    )
