"""What the runs of `pre_pretraining` say: waiting times by source, and the judge of A-16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import LogRank, logrank, median_time
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import steps_in_words, with_interval

STRUCTURED = ("dyck", "neural_ca")
CONTROL = "unigram"
NAMES = {
    "none": "no source",
    "dyck": "Dyck",
    "neural_ca": "neural automata",
    "unigram": "unigram tokens",
}
MIN_RUNS = 4
"""Runs that each of two arms must have to be compared."""


def longest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of every source the runs that trained on it for most steps: what the judge reads."""
    return rows[rows.source_steps == rows.groupby("source").source_steps.transform("max")]


def event(row: pd.Series, *, all_steps: bool = False) -> Event:
    """The emergence in downstream steps, or counted with the source's steps; maybe censored."""
    before = row.source_steps if all_steps else 0
    seen = not pd.isna(row.acquired_at)
    return Event(float(row.acquired_at if seen else row.stopped_at) + before, bool(seen))


def events(rows: pd.DataFrame, *, all_steps: bool = False) -> dict[str, list[Event]]:
    """source → one event a run, in the order of `NAMES`; sources that are recorded only."""
    return {
        source: [
            event(row, all_steps=all_steps) for _, row in rows[rows.source == source].iterrows()
        ]
        for source in NAMES
        if (rows.source == source).any()
    }


def named_events(rows: pd.DataFrame, *, all_steps: bool = False) -> dict[str, list[Event]]:
    """`events` under the names of `NAMES`, for a figure."""
    return {NAMES[source]: of for source, of in events(rows, all_steps=all_steps).items()}


def curves(rows: pd.DataFrame) -> dict[str, list[pd.Series]]:
    """Name of a source → held-out loss over downstream steps, one curve a run."""
    return {
        NAMES[source]: [
            pd.Series(row.eval_loss, index=row.eval_steps)
            for _, row in rows[rows.source == source].iterrows()
        ]
        for source in NAMES
        if (rows.source == source).any()
    }


def source_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a source and number of steps on it: its own loss, and the wait for induction after.

    Returns:
        Columns source, "source steps", n, acquired (runs), "downstream wait" (median steps, in
        words), "with source steps" (the same by all steps), "source loss" (mean at its end, nats)
        and "source floor" (nats); NaN without a source.
    """
    lines = []
    for source in NAMES:
        for steps, runs in rows[rows.source == source].groupby("source_steps"):
            alone, together = (events(runs, all_steps=a)[source] for a in (False, True))
            watched = int(runs.steps.max())
            lines.append(
                (
                    NAMES[source],
                    int(steps),
                    len(runs),
                    sum(e.observed for e in alone),
                    steps_in_words(median_time(alone), watched),
                    steps_in_words(median_time(together), watched + int(steps)),
                    runs.source_loss.astype(float).mean(),
                    runs.source_floor.astype(float).mean(),
                )
            )
    columns = ["source", "source steps", "n", "acquired", "downstream wait", "with source steps"]
    return pd.DataFrame(lines, columns=[*columns, "source loss", "source floor"])


def compare(
    rows: pd.DataFrame, source: str, reference: str, *, all_steps: bool = False
) -> LogRank | None:
    """Waits after `source` against those after `reference`, as far as both were watched.

    None where either has fewer than `MIN_RUNS` runs. A ratio below 1 is sooner after `source`.
    """
    found = events(rows, all_steps=all_steps)
    if min(len(found.get(name, [])) for name in (source, reference)) < MIN_RUNS:
        return None
    pair = {reference: found[reference], source: found[source]}
    return logrank(pair, _watched(pair))


def _watched(groups: Mapping[str, Sequence[Event]]) -> float:
    """Steps up to which the share still waiting is known in every group.

    A group that all got there is known for good: arms without a source end their training long
    before those with one do, counted in all steps, and nothing is missing in them.
    """
    last = [max(of, key=lambda e: (e.step, not e.observed)) for of in groups.values()]
    open_ended = [event.step for event in last if not event.observed]
    return min(open_ended) if open_ended else max(event.step for event in last)


def faster(test: LogRank | None, source: str) -> bool:
    """The whole interval of the ratio below 1, and the log-rank test agrees (p < 0.05)."""
    return test is not None and test.ratios[source].high < 1 and test.p_value < 0.05


def judge_pre_pretraining(rows: pd.DataFrame) -> Verdict:
    """A-16: after Dyck or neural automata induction emerges sooner than without a source.

    The claim is that it *can*, so one source is enough. "reproduced": after one of them sooner than
    without a source, in downstream steps, and sooner than after the control, tokens without
    structure: else it is not the structure that helps. "partly": sooner than without, but not shown
    to be sooner than the control. "not reproduced": neither source is sooner. Four runs of a source
    and of none are needed; of several lengths of training on a source the longest counts.
    """
    rows = longest(rows) if len(rows) else rows
    parts, better, best = [], False, False
    used = {"none"}
    for source in STRUCTURED:
        alone = compare(rows, source, "none") if len(rows) else None
        if alone is None:
            continue
        used.add(source)
        control = compare(rows, source, CONTROL)
        matched = compare(rows, source, "none", all_steps=True)
        better |= faster(alone, source)
        best |= faster(alone, source) and faster(control, source)
        steps = int(rows.source_steps[rows.source == source].max())
        name = f"{NAMES[source][0].upper()}{NAMES[source][1:]}, {steps:,} steps"
        parts.append(f"{name}: {_in_words(source, alone, control, matched)}")
    if not parts:
        return Verdict("not tested here", "Four runs of a source and four of none are needed.", 0)
    if compare(rows, CONTROL, "none") is not None:
        used.add(CONTROL)
        parts.append(_control_in_words(rows))
    n = int(rows.source.isin(used).sum())
    status = "reproduced" if best else "partly" if better else "not reproduced"
    waits = events(rows)["none"]
    without = steps_in_words(median_time(waits), int(rows.steps.max()))
    return Verdict(
        status,
        f"Induction, median wait without a source {without} ({sum(e.observed for e in waits)} of "
        f"{len(waits)} runs). Ratios of mean waits, below 1 is sooner. {' '.join(parts)}",
        n,
    )


def _in_words(source: str, alone: LogRank, control: LogRank | None, matched: LogRank | None) -> str:
    """ "0.50 [0.40, 0.60] of the wait without a source (p = 0.001); …"."""
    text = f"{_ratio(alone, source)} of the wait without a source"
    if control is not None:
        text += f", {_ratio(control, source)} of that after unigram tokens"
    if matched is not None:
        text += f"; with its own steps counted {_ratio(matched, source)}"
    return f"{text}."


def _control_in_words(rows: pd.DataFrame) -> str:
    test = compare(rows, CONTROL, "none")
    assert test is not None
    return f"The control, unigram tokens: {_ratio(test, CONTROL)} of the wait without a source."


def _ratio(test: LogRank, source: str) -> str:
    return f"{with_interval(test.ratios[source], '.2f')} (p = {test.p_value:.2g})"
