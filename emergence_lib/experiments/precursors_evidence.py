"""What the recorded runs of `precursors` say: who moves first (B-6, B-7, B-8, B-11).

Task-levels of one run are not independent: shares are taken per run, and intervals over runs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from emergence_lib.analysis.precursor import definition_sweep
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import with_interval
from emergence_lib.experiments.precursor_events import (
    RULE,
    cases,
    lead_table,
    mean_share,
    probe_table,
    share,
    swapped,
)

MIN_RUNS = 3
"""Runs with acquired task-levels without which nothing is judged."""


def judge_llc(rows: pd.DataFrame) -> Verdict:
    """B-6: the LLC changes together with acquisition and gives no warning.

    No warning: its peak leads acquisition in less than half of the acquired task-levels (upper end
    of the interval over runs). Together: the checkpoint at which it moved most is within one of
    acquisition, in more than half (lower end). "reproduced": both; "partly": one; "not
    reproduced": neither. Fewer than three runs with interpretable curves test nothing.
    """
    table = lead_table(rows, ["llc"])
    leads, together = share(table, "leads"), share(table, "together")
    runs = _runs(table)
    if runs < MIN_RUNS:
        return _untested(runs)
    early = share(lead_table(rows, ["llc"], with_warmup=True), "leads")
    holds = [leads.high < 0.5, together.low > 0.5]
    status = ("not reproduced", "partly", "reproduced")[sum(holds)]
    flags = [_share_readable(row) for _, row in rows.iterrows()]
    learned = table[table.acquired.notna()]
    evidence = (
        f"Of {len(learned)} acquired task-levels in {runs} runs the LLC's peak comes before "
        f"acquisition in {int(learned.leads.sum())} (share of a run {with_interval(leads, '.0%')}; "
        f"paper: 0 of 24), and its fastest move is within one checkpoint of acquisition in "
        f"{with_interval(together, '.0%')}. The {np.mean(flags):.0%} of the values that the "
        f"sampler does not flag count, past the warm-up; with those of the warm-up, when the loss "
        f"falls at every step, the share is {with_interval(early, '.0%')}."
    )
    return Verdict(status, evidence, runs)


def judge_hessian(rows: pd.DataFrame) -> Verdict:
    """B-7: the largest Hessian eigenvalue seldom changes ahead of acquisition.

    "reproduced": its peak leads in less than half of the acquired task-levels (upper end of the
    interval over runs); "not reproduced": in more than half (lower end); else "partly". Fewer than
    three runs test nothing.
    """
    table = lead_table(rows, ["hessian"])
    runs = _runs(table)
    if runs < MIN_RUNS:
        return _untested(runs)
    leads = share(table, "leads")
    status = "reproduced" if leads.high < 0.5 else "not reproduced" if leads.low > 0.5 else "partly"
    learned = table[table.acquired.notna()]
    onset = _rate(rows, "hessian", "onset")
    other = swapped(rows, "hessian")
    rank = share(lead_table(rows, ["rankme"]), "leads")
    evidence = (
        f"The peak of the largest eigenvalue by sign comes before acquisition in "
        f"{int(learned.leads.sum())} of {len(learned)} acquired task-levels of {runs} runs, "
        f"{with_interval(leads, '.0%')} of a run (paper: 17 %); another task-level's curve in its "
        f"place, {other:.0%}. Taking the onset of its rise instead, {onset:.0%}. RankMe's floor, "
        f"by the same rule: {with_interval(rank, '.0%')}."
    )
    return Verdict(status, evidence, runs)


def judge_others(rows: pd.DataFrame) -> Verdict:
    """B-8: the ranks of the gradients show no early discrete event.

    An event: the rank falls by a tenth or more and comes back half-way, both before acquisition.
    "reproduced": both ranks show one in less than half of the acquired task-levels (upper ends of
    the intervals over runs); "not reproduced": both in more than half (lower ends); else "partly".
    Fewer than three runs test nothing.
    """
    tables = {name: lead_table(rows, [name]) for name in ("fisher_rank", "covariance_rank")}
    runs = min(_runs(table) for table in tables.values())
    if runs < MIN_RUNS:
        return _untested(runs)
    events = {name: share(table, "transient") for name, table in tables.items()}
    few = [event.high < 0.5 for event in events.values()]
    many = [event.low > 0.5 for event in events.values()]
    status = "reproduced" if all(few) else "not reproduced" if all(many) else "partly"
    rank = share(lead_table(rows, ["rankme"]), "transient")
    first = share(lead_table(rows, ["covariance_rank_first"]), "transient")
    evidence = (
        f"A fall by a tenth and half-way back, before acquisition: the gradients' Fisher rank in "
        f"{with_interval(events['fisher_rank'], '.0%')} of the acquired task-levels of a run, the "
        f"rank of their covariance in {with_interval(events['covariance_rank'], '.0%')} (first "
        f"50,000 parameters alone: {with_interval(first, '.0%')}); RankMe, for comparison, in "
        f"{with_interval(rank, '.0%')}. {runs} runs."
    )
    return Verdict(status, evidence, runs)


def judge_probes(rows: pd.DataFrame) -> Verdict:
    """B-11: a probe reads the answer before the model says it.

    Counted over the task-levels that the model comes to say and that no probe reads in the
    untrained model. "reproduced": the probe is first in more than half (lower end of the interval
    over runs); "not reproduced": in less than half (upper end); else "partly". Fewer than three
    runs with such task-levels test nothing.
    """
    table = probe_table(rows)
    new = table[table.said.notna() & ~table.untrained]
    runs = new.seed.nunique()
    if runs < MIN_RUNS:
        return _untested(runs)
    first = mean_share(new, "first")
    status = "reproduced" if first.low > 0.5 else "not reproduced" if first.high < 0.5 else "partly"
    gap = (new.said - new.read)[new["first"]].median()
    evidence = (
        f"Of {len(new)} pairs of run and task-level whose last answer token the model comes to say "
        f"and a probe does not read untrained, the probe is first in {int(new['first'].sum())} "
        f"({with_interval(first, '.0%')} of a run"
        f"{'' if np.isnan(gap) else f', median lead {gap:,.0f} steps'}). In "
        f"{int(table.untrained.sum())} of all {len(table)} pairs a probe reads it from the "
        f"untrained model. Fitted on shuffled answers the probe is at most "
        f"{(table.shuffled - table.chance).max():.2f} above the share of the most frequent answer."
    )
    return Verdict(status, evidence, runs)


def _rate(rows: pd.DataFrame, measure: str, event: str) -> float:
    """Share of acquired cases that lead by another event of the same rule."""
    return float(definition_sweep(cases(rows, measure), RULE, event=(event,)).rate.iloc[0])


def _share_readable(row: pd.Series) -> float:
    return float(np.mean(np.asarray(row["llc_readable"], dtype=float)))


def _runs(table: pd.DataFrame) -> int:
    """Runs with an acquired task-level."""
    return int(table[table.acquired.notna()].seed.nunique())


def _untested(n: int) -> Verdict:
    return Verdict("not tested here", "Three runs with acquired task-levels are needed.", n)
