"""Easy and hard task-levels of `collapse`: who is led by the rank, and what it predicts.

Claims B-5, B-10 and B-12. Paper B (arXiv 2602.15997; fact sheet B3) finds that the rank leads
acquisition for hard tasks and not for easy ones, and that its timing does not predict the order
within a class. How it classes tasks is not known to us; here the later half of the task-levels that
the smallest model acquires, and those that it never does, are hard.

That makes one half of the story a matter of definition: hard is late, and what comes early comes
before what is late. So each rate stands beside `swapped_rate`, the rate at which the rank leads the
acquisition of *another* task-level of the same class.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.precursor import (
    OUTCOMES,
    Case,
    Concordance,
    Rule,
    concordance,
    outcomes,
    phases,
    surrogate_rate,
    swapped_rate,
)
from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.collapse_cell import cases, multi_task
from emergence_lib.experiments.collapse_evidence import MIN_RUNS
from emergence_lib.experiments.collapse_phases import RULE, phase_table, sizes_in
from emergence_lib.experiments.evidence import over_runs, share_over_runs, with_interval

CLASSES = ("easy", "hard")

OFTEN = 0.75
"""The lowest share of hard tasks that the paper says is led (v1)."""


def difficulty(rows: pd.DataFrame) -> pd.Series:
    """Task-level → "easy" or "hard", from the runs of the smallest recorded size on all tasks.

    By the median step of acquisition over runs, never counting as infinite: easy is up to the
    median of those that are acquired.
    """
    runs = multi_task(rows)
    runs = runs[runs["size"].isin(sizes_in(runs)[:1])]
    table = phase_table(runs)
    times = table.acquired.astype(float).fillna(np.inf)
    times = times.groupby(table.task_level, sort=False).median()
    finite = times[np.isfinite(times)]
    middle = finite.median() if len(finite) else -np.inf
    return pd.Series(np.where(times <= middle, "easy", "hard"), index=times.index)


def cases_by_class(row: pd.Series, classes: pd.Series) -> dict[str, list[Case]]:
    """The cases of one run, easy and hard."""
    found = cases(row)
    return {
        name: [case for level, case in found.items() if classes[level] == name] for name in CLASSES
    }


def lead_rates(rows: pd.DataFrame, rule: Rule = RULE) -> pd.DataFrame:
    """How often the rank leads acquisition, one line a run and class.

    Returns:
        Columns size, seed, class, n (acquired task-levels), rate (share of them that is led),
        swapped (the rate with the acquisition of another task-level of the class), gain (rate minus
        swapped), and the counts of `analysis.precursor.OUTCOMES`.
    """
    classes = difficulty(rows)
    lines = []
    for _, row in multi_task(rows).iterrows():
        for name, found in cases_by_class(row, classes).items():
            counts = outcomes(found, rule)
            n = len(found) - int(counts["not acquired"])
            rate = counts["leads"] / n if n else math.nan
            swapped = swapped_rate(found, rule)
            run = {"size": row["size"], "seed": row["seed"], "class": name}
            shares = {"n": n, "rate": rate, "swapped": swapped, "gain": rate - swapped}
            lines.append(run | shares | counts.to_dict())
    columns = ["size", "seed", "class", "n", "rate", "swapped", "gain", *OUTCOMES]
    return pd.DataFrame(lines, columns=columns)


def chance_rates(rows: pd.DataFrame, events: tuple[str, ...]) -> pd.DataFrame:
    """What leads by chance alone, one line an event and class, means over runs with intervals.

    Returns:
        Columns event, class, kind ("measured", "another task-level's rank", "its own moves,
        shuffled"), value, low, high, n (runs).
    """
    classes = difficulty(rows)
    lines = []
    for event in events:
        rule = Rule(event=event)
        rates = lead_rates(rows, rule)
        generator = np.random.default_rng(0)
        shuffled = [
            {"class": name, "rate": surrogate_rate(found, rule, generator, n=50)}
            for _, row in multi_task(rows).iterrows()
            for name, found in cases_by_class(row, classes).items()
        ]
        surrogates = pd.DataFrame(shuffled, columns=["class", "rate"])
        for name in CLASSES:
            mine = rates[rates["class"] == name]
            kinds = {
                "measured": mine.rate,
                "another task-level's rank": mine.swapped,
                "its own moves, shuffled": surrogates.rate[surrogates["class"] == name],
            }
            lines += [
                (event, name, kind, *share_over_runs(values), int(values.notna().sum()))
                for kind, values in kinds.items()
            ]
    return pd.DataFrame(lines, columns=["event", "class", "kind", "value", "low", "high", "n"])


def judge_hard_tasks_are_led(rows: pd.DataFrame) -> Verdict:
    """B-5: for hard tasks the change of RankMe comes before acquisition.

    The change is the floor of a collapse (`analysis.precursor.Rule`). "reproduced": the share of
    acquired hard task-levels that it leads is at least 0.75 with the lower end of its interval over
    runs, and it is larger than with the acquisition of another hard task-level in the same way.
    "partly": only the first holds, so that any rank would do. Else "not reproduced". Fewer than
    three runs with acquired hard task-levels test nothing.
    """
    rates = lead_rates(rows)
    hard = rates[(rates["class"] == "hard") & (rates.n > 0)]
    if len(hard) < MIN_RUNS:
        return _untested(len(hard))
    rate, gain = share_over_runs(hard.rate), over_runs(hard.gain)
    often = rate.low >= OFTEN
    status = "reproduced" if often and gain.low > 0 else "partly" if often else "not reproduced"
    every = share_over_runs(_share_led(rates[rates["size"] == sizes_in(rates)[0]]))
    recovery = lead_rates(rows, Rule(event="recovery"))
    recovery = recovery[(recovery["class"] == "hard") & (recovery.n > 0)]
    evidence = (
        f"The floor of the rank comes before acquisition in {hard.leads.sum()} of {hard.n.sum()} "
        f"acquired hard task-levels of {len(hard)} runs ({with_interval(rate, '.0%')} of a run, "
        f"{hard.ties.sum()} ties, {hard['no collapse'].sum()} without a collapse; paper: 75 to 100 "
        f"% in v1, 100 % in v3 and v4). With the acquisition of another hard task-level: "
        f"{with_interval(share_over_runs(hard.swapped), '.0%')}; difference "
        f"{with_interval(gain, '.0%')}. Half the recovery, instead of the floor: "
        f"{with_interval(share_over_runs(recovery.rate), '.0%')}. All task-levels of the "
        f"smallest model: {with_interval(every, '.0%')} (paper: 86 %)."
    )
    return Verdict(status, evidence, len(hard))


def _share_led(rates: pd.DataFrame) -> pd.Series:
    """Share of the acquired task-levels of a run, of both classes, that the rank leads."""
    sums = rates.groupby("seed")[["leads", "n"]].sum()
    return sums.leads / sums.n


def judge_easy_tasks_are_not_led(rows: pd.DataFrame) -> Verdict:
    """B-12: easy tasks have no precursor (and no gap, of which the rank can say this much).

    "reproduced": the share of easy task-levels that the rank's floor leads is below one half with
    the upper end of its interval over runs; "not reproduced": above it with the lower end; else
    "partly". Hidden knowledge is what probes read (claim B-11). Fewer than three runs with
    acquired easy task-levels test nothing.
    """
    rates = lead_rates(rows)
    easy = rates[(rates["class"] == "easy") & (rates.n > 0)]
    if len(easy) < MIN_RUNS:
        return _untested(len(easy))
    rate = share_over_runs(easy.rate)
    status = "reproduced" if rate.high < 0.5 else "not reproduced" if rate.low > 0.5 else "partly"
    hard = rates[(rates["class"] == "hard") & (rates.n > 0)]
    classes = difficulty(rows)
    table = phase_table(multi_task(rows))
    mine = table[table.task_level.map(classes) == "easy"]
    evidence = (
        f"The floor of the rank comes before acquisition in {easy.leads.sum()} of {easy.n.sum()} "
        f"acquired easy task-levels of {len(easy)} runs ({with_interval(rate, '.0%')} of a run, "
        f"{easy.ties.sum()} ties, {easy['no collapse'].sum()} without a collapse; hard ones: "
        f"{with_interval(share_over_runs(hard.rate), '.0%')}). Median step of the floor "
        f"{mine.floor_step.median():,.0f}, of acquisition {mine.acquired.median():,.0f}. Easy: "
        f"{', '.join(classes[classes == 'easy'].index)}."
    )
    return Verdict(status, evidence, len(easy))


def concordance_table(rows: pd.DataFrame, event: str = "floor") -> pd.DataFrame:
    """How well the time of an event orders acquisition, one line a run and set of pairs.

    Args:
        event: "floor" or "recovery".

    Returns:
        Columns size, seed, pairs ("easy", "hard": within the class; "between": one of each class),
        index (Harrell's C), n (pairs), ties.
    """
    classes = difficulty(rows)
    lines = []
    for _, row in multi_task(rows).iterrows():
        by_class = cases_by_class(row, classes)
        within = {name: _concordance(found, event) for name, found in by_class.items()}
        whole = _concordance([case for found in by_class.values() for case in found], event)
        between = Concordance(
            *(
                getattr(whole, kind) - sum(getattr(one, kind) for one in within.values())
                for kind in ("concordant", "discordant", "ties")
            )
        )
        for name, found in (within | {"between": between}).items():
            n = found.concordant + found.discordant + found.ties
            lines.append((row["size"], row["seed"], name, found.index, n, found.ties))
    return pd.DataFrame(lines, columns=["size", "seed", "pairs", "index", "n", "ties"])


def _concordance(found: list[Case], event: str) -> Concordance:
    """A recovery that is not seen comes last."""
    times = []
    for case in found:
        phase = phases(case.rank, RULE)
        at = Event(phase.floor_step, True) if event == "floor" else phase.recovery
        times.append(at.step if at.observed else float(case.rank.index[-1]) + 1)
    return concordance(times, [case.acquired for case in found])


def reversal_concordance(rows: pd.DataFrame, event: str = "floor") -> Concordance:
    """Pairs of task-levels whose order of acquisition reverses between the smallest and the largest
    recorded size: does the order of the rank's event reverse with it?

    Times are medians over seeds. A pair is concordant if the event's order reverses too, in the
    same direction, and discordant otherwise; ties of the event count as ties.
    """
    table = phase_table(multi_task(rows))
    column = "floor_step" if event == "floor" else "recovered"
    table = table.assign(event=table[column].fillna(np.inf), at=table.acquired.fillna(np.inf))
    sizes = sizes_in(table)
    ends = [
        table[table["size"] == size].groupby("task_level", sort=False)[["event", "at"]].median()
        for size in (sizes[0], sizes[-1])
    ]
    small, large = ({name: _signs(end[name]) for name in ("event", "at")} for end in ends)
    reversed_ = np.triu(small["at"] * large["at"] < 0)
    moved = np.triu((small["event"] == small["at"]) & (large["event"] == large["at"]))
    tied = (small["event"] == 0) | (large["event"] == 0)
    agree, ties = int((reversed_ & moved).sum()), int((reversed_ & tied).sum())
    return Concordance(agree, int(reversed_.sum()) - agree - ties, ties)


def _signs(values: pd.Series) -> np.ndarray:
    """Order of every pair: 1 where the second comes later; 0 where equal, never or both never."""
    first, second = values.to_numpy()[:, None], values.to_numpy()[None, :]
    return (second > first).astype(int) - (second < first)


def judge_fine_timing(rows: pd.DataFrame) -> Verdict:
    """B-10: geometry separates easy from hard tasks but does not predict the order within a class.

    The time of the rank's floor against the time of acquisition, as Harrell's C over pairs of
    task-levels of a run. Separates: C of pairs of one easy and one hard task-level lies above one
    half (lower end of the interval over runs). Does not predict: C within the easy and within the
    hard ones does not. "reproduced": both; "partly": one; "not reproduced": neither. Fewer than
    three runs with pairs of each kind test nothing.
    """
    runs = multi_task(rows)
    known = concordance_table(rows).dropna().pairs.value_counts()
    n_runs = int(known.reindex([*CLASSES, "between"], fill_value=0).min())
    if n_runs < MIN_RUNS:
        return _untested(n_runs)
    found = {event: _indices(rows, event) for event in ("floor", "recovery")}
    floor = found["floor"]
    separates = floor["between"].low > 0.5
    unpredicted = not (floor["easy"].low > 0.5 or floor["hard"].low > 0.5)
    status = ("not reproduced", "partly", "reproduced")[separates + unpredicted]
    texts = {
        event: f"easy {with_interval(one['easy'], '.2f')}, hard "
        f"{with_interval(one['hard'], '.2f')}, between {with_interval(one['between'], '.2f')}"
        for event, one in found.items()
    }
    table = concordance_table(rows)
    sizes = sizes_in(runs)
    across = ""
    if len(sizes) > 1:
        back = reversal_concordance(rows)
        n = back.concordant + back.discordant + back.ties
        across = (
            f" Where the order of acquisition reverses between {sizes[0]} and {sizes[-1]}, that of "
            f"the floors goes with it in {back.concordant} of {n} pairs ({back.ties} ties; paper: "
            f"26 %)."
        )
    evidence = (
        f"Concordance of the time of the floor with that of acquisition, mean over {n_runs} "
        f"runs (0.5 is chance): {texts['floor']}; {table.ties.sum() / max(1, table.n.sum()):.0%} "
        f"of the pairs are ties of the floor. Time of half the recovery: {texts['recovery']}. "
        f"Paper, within a class: 27 % (v1), 52 % easy to 69 % hard (v3).{across}"
    )
    return Verdict(status, evidence, n_runs)


def _indices(rows: pd.DataFrame, event: str) -> dict[str, Estimate]:
    table = concordance_table(rows, event)
    return {name: share_over_runs(own["index"]) for name, own in table.groupby("pairs")}


def _untested(n: int) -> Verdict:
    need = "Three runs on all tasks that acquire some of their task-levels are needed."
    return Verdict("not tested here", need, n)
