"""What the recorded runs of `language_geometry` say (claim B-13).

The phases of a rank curve are those of `analysis.precursor` under its default `Rule`, as in
`collapse`. A capability is acquired where the share of prompts solved is more than half-way from
that of its control prompts to all, at three checkpoints in a row: paper B's sustained criterion
(fact sheet B1) on the scale of `pythia_evidence.solves`.

Early comes before late. So each capability's rank stands beside that of its control prompts, which
look alike and have no answer: what both do is no sign of the capability. Capabilities of one run
are not independent, and intervals are over runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event, acquisition
from emergence_lib.analysis.precursor import (
    EVENTS,
    Case,
    Rule,
    definition_sweep,
    lead_steps,
    outcome,
    phases,
)
from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.collapse_cell import SUSTAIN
from emergence_lib.experiments.collapse_phases import PhaseRun
from emergence_lib.experiments.evidence import share_over_runs, with_interval
from emergence_lib.experiments.language_probe import CONTROLS, GROUPS
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.tasks.prompts import CAPABILITIES

RULE = Rule()
"""What counts as a collapse and as a precursor; `definition_sweep` says how much hangs on it."""

MIN_RUNS = 3
"""Runs with an acquired capability without which nothing is judged."""

KINDS = {"its own prompts": 0, "control prompts": 1}


def rank_curve(
    row: pd.Series, group: str, layer: int | None = None, centred: bool = False
) -> pd.Series:
    """Effective rank of one group of inputs over training steps.

    Args:
        row: one recorded run.
        group: one of `language_probe.GROUPS`.
        layer: from 1; None is the last.
        centred: see `analysis.geometry`.
    """
    by_layer = row["rankme_centred" if centred else "rankme"][GROUPS.index(group)]
    values = by_layer[(layer or len(by_layer)) - 1]
    return pd.Series(np.asarray(values, dtype=float), index=_steps(row), name="rankme")


def behaviour(row: pd.Series, group: str) -> pd.Series:
    """What the model does on a group: share of next tokens right, or of prompts solved."""
    if group in DOMAINS:
        values = row["accuracy"][DOMAINS.index(group)]
    elif group in CAPABILITIES:
        values = row["solved"][list(CAPABILITIES).index(group)]
    else:
        values = row["control_solved"][list(CONTROLS.values()).index(group)]
    return pd.Series(np.asarray(values, dtype=float), index=_steps(row), name="behaviour")


def gain(row: pd.Series, capability: str) -> pd.Series:
    """Share of prompts solved, on a scale from 0, that of the control prompts, to 1, all."""
    solved, control = behaviour(row, capability), behaviour(row, CONTROLS[capability])
    room = 1 - control
    return ((solved - control) / room.where(room > 0)).fillna(0.0)


def acquired(row: pd.Series, capability: str, share: float = 0.5) -> Event:
    """When a capability was acquired: `gain` above `share` for three checkpoints."""
    return acquisition(gain(row, capability), share, SUSTAIN)


def phase_table(rows: pd.DataFrame, centred: bool = False) -> pd.DataFrame:
    """One line a run and group: what its rank does at the last layer.

    Returns:
        Columns size, seed, group, untrained (rank at step 0), peak, floor, floor_step, depth (share
        of the peak lost), recovered (half-way back; step, NaN where not seen), last (rank at the
        end), whole (a collapse that is half recovered).
    """
    lines = []
    for _, row in rows.iterrows():
        for group in GROUPS:
            rank = rank_curve(row, group, centred=centred)
            found = phases(rank, RULE)
            back = found.recovery
            lines.append(
                {
                    "size": row["size"],
                    "seed": row["seed"],
                    "group": group,
                    "untrained": rank.iloc[0],
                    "peak": found.peak,
                    "floor": found.floor,
                    "floor_step": found.floor_step,
                    "depth": found.depth,
                    "recovered": back.step if back.observed else np.nan,
                    "last": rank.iloc[-1],
                    "whole": found.collapsed and back.observed,
                }
            )
    columns = ["size", "seed", "group", "untrained", "peak", "floor", "floor_step", "depth"]
    return pd.DataFrame(lines, columns=[*columns, "recovered", "last", "whole"])


def lead_table(rows: pd.DataFrame, share: float = 0.5) -> pd.DataFrame:
    """One line a run and acquired capability: does its rank lead, and does only its own?

    Args:
        rows: recorded runs.
        share: see `acquired`.

    Returns:
        Columns size, seed, capability, acquired (step), leads, lead (steps from the floor to
        acquisition, NaN without a collapse), control (the rank of the control prompts leads),
        texts (share of the domains whose rank leads), own (its own leads and the control does not).
    """
    lines = []
    for _, row in rows.iterrows():
        for capability in CAPABILITIES:
            event = acquired(row, capability, share)
            if not event.observed:
                continue

            def leads(group: str, row: pd.Series = row, event: Event = event) -> bool:
                return outcome(Case(rank_curve(row, group), event), RULE) == "leads"

            mine, control = leads(capability), leads(CONTROLS[capability])
            lines.append(
                {
                    "size": row["size"],
                    "seed": row["seed"],
                    "capability": capability,
                    "acquired": event.step,
                    "leads": mine,
                    "lead": lead_steps(Case(rank_curve(row, capability), event), RULE),
                    "control": control,
                    "texts": float(np.mean([leads(domain) for domain in DOMAINS])),
                    "own": mine and not control,
                }
            )
    columns = ["size", "seed", "capability", "acquired", "leads", "lead", "control", "texts", "own"]
    return pd.DataFrame(lines, columns=columns)


def run_share(table: pd.DataFrame, column: str) -> Estimate:
    """Mean over runs of a share, with its interval over runs cut to 0 … 1."""
    return share_over_runs(table.groupby(["size", "seed"])[column].mean())


def judge_language(rows: pd.DataFrame) -> Verdict:
    """B-13: collapse and recovery over pretraining, without a precursor of single capabilities.

    The claim has three parts. *Pattern*: at the last layer the rank of the texts of a domain falls
    by a tenth or more and comes half-way back, in more than half of the domains (lower end of the
    interval over runs). *No precursor of its own*: the floor of a capability's rank comes before
    acquisition and that of its control prompts does not, in less than half of the acquired
    capabilities (upper end). *A gap at a hard reasoning task* needs a model that learns one, which
    none of the pocket suite does: not tested. So "partly" is the most that can be said: both of the
    first two, or one; "not reproduced": neither. Fewer than three runs with an acquired capability
    test nothing.
    """
    leads = lead_table(rows)
    runs = len(leads.groupby(["size", "seed"]))
    if runs < MIN_RUNS:
        return Verdict(
            "not tested here", "Three runs that acquire one of the capabilities are needed.", runs
        )
    table, centred = phase_table(rows), phase_table(rows, centred=True)
    texts, about_mean = (t[t.group.isin(DOMAINS)] for t in (table, centred))
    pattern, own = run_share(texts, "whole"), run_share(leads, "own")
    holds = {"Collapse and recovery": pattern.low > 0.5, "no precursor of its own": own.high < 0.5}
    early = lead_table(rows, share=0.2)
    swept = sweep_table(rows).rate
    said = "; ".join(f"{part}: {'yes' if held else 'no'}" for part, held in holds.items())
    evidence = (
        f"{said}; the hard reasoning task is not tested. {models_in_words(rows)} "
        f"RankMe of held-out texts at the last layer falls by a tenth or more and comes half-way "
        f"back in {with_interval(pattern, '.0%')} of a run's domains (centred rank: "
        f"{with_interval(run_share(about_mean, 'whole'), '.0%')}); median floor at step "
        f"{texts.floor_step.median():,.0f}, {texts.depth.median():.0%} below the peak. Of "
        f"{len(leads)} acquired capabilities the floor of their prompts comes before in "
        f"{int(leads.leads.sum())} ({with_interval(run_share(leads, 'leads'), '.0%')} of a run), "
        f"that of their control prompts in {int(leads.control.sum())}, that of texts in "
        f"{with_interval(run_share(leads, 'texts'), '.0%')}; theirs and not the control's in "
        f"{with_interval(own, '.0%')}. By other definitions of the event {swept.min():.0%} to "
        f"{swept.max():.0%} lead. With a fifth of the way as acquisition: {len(early)} "
        f"capabilities, theirs alone in {with_interval(run_share(early, 'own'), '.0%')}."
    )
    return Verdict("partly" if any(holds.values()) else "not reproduced", evidence, runs)


def models_in_words(rows: pd.DataFrame) -> str:
    """Which models the rows are of: "Pocket suite: 98k (5 runs), 442k (2 runs)."."""
    names = {"pocket": "Pocket suite", "hub": "Pythia"}
    parts = [
        f"{names[source]}: "
        + ", ".join(f"{size} ({len(runs)} runs)" for size, runs in own.groupby("size", sort=False))
        for source, own in rows.groupby("source", sort=False)
    ]
    return f"{'; '.join(parts)}."


def sweep_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How often a capability's own rank leads under each definition of the event.

    Returns:
        Columns event, min_depth, n, leads, ties, rate.
    """
    cases = [
        Case(rank_curve(row, capability), acquired(row, capability))
        for _, row in rows.iterrows()
        for capability in CAPABILITIES
    ]
    return definition_sweep(cases, RULE, event=EVENTS, min_depth=(0.05, 0.1, 0.3, 0.5))


def phase_panels(rows: pd.DataFrame, groups: Sequence[str]) -> dict[str, list[PhaseRun]]:
    """Group in words → one `PhaseRun` for each run, for `plotting.three_phases`."""
    return {
        group.replace("_", " "): [
            PhaseRun(
                rank := rank_curve(row, group),
                rank_curve(row, group, centred=True),
                behaviour(row, group),
                phases(rank, RULE).floor_step,
                _step(acquired(row, group)) if group in CAPABILITIES else float("inf"),
            )
            for _, row in rows.iterrows()
        ]
        for group in groups
    }


def beside_controls(
    rows: pd.DataFrame, centred: bool = False
) -> dict[str, dict[str, list[pd.Series]]]:
    """Capability in words → a key of `KINDS` → one rank curve a run; no kinds without rows."""
    return {
        capability.replace("_", " "): {
            kind: [
                rank_curve(row, (capability, CONTROLS[capability])[i], centred=centred)
                for _, row in rows.iterrows()
            ]
            for kind, i in (KINDS.items() if len(rows) else ())
        }
        for capability in CAPABILITIES
    }


def acquired_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`lead_table` in a reader's words, one line a size and capability that any run acquires.

    Returns:
        Columns size, capability, runs, acquired (runs that do), and medians over those: step,
        lead; and of how many its own rank, the control prompts' and only its own come before.
    """
    table = lead_table(rows)
    runs = rows.groupby("size").size()
    found = table.groupby(["size", "capability"], sort=False).agg(
        acquired=("acquired", "size"),
        step=("acquired", "median"),
        lead=("lead", "median"),
        its_own_leads=("leads", "sum"),
        control_leads=("control", "sum"),
        only_its_own=("own", "sum"),
    )
    found = found.reset_index()
    found.insert(2, "runs", found["size"].map(runs))
    found["capability"] = found.capability.str.replace("_", " ")
    return found.rename(columns=lambda name: name.replace("_", " "))


def _steps(row: pd.Series) -> list[int]:
    return [int(step) for step in row["checkpoints"]]


def _step(event: Event) -> float:
    return event.step if event.observed else float("inf")
