"""How the ledger, the status and a sweep's plan read on a terminal, from 80 columns up."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import click

from emergence_lib.claims import Entry
from emergence_lib.experiments.base import STATUSES
from emergence_lib.status import Status

COLOURS = {"reproduced": "green", "partly": "yellow", "not reproduced": "red"}
CELLS_SHOWN = 6
"""Incomplete cells listed for a profile before "and N more"."""


def entry_text(entry: Entry, width: int) -> str:
    """A claim with its verdict, our evidence and the paper's figure."""
    claim, verdict = entry.claim, entry.verdict
    margin = " " * 5
    lines = [
        click.style(f"{claim.id:<5}", bold=True)
        + click.style(verdict.status, fg=COLOURS.get(verdict.status)),
        wrapped(claim.statement, width, margin, margin),
        wrapped(f"Here: {verdict.evidence}", width, margin, margin + "  "),
        wrapped(f"Paper: {claim.paper_figure}", width, margin, margin + "  "),
    ]
    if entry.profile is not None:
        basis = f"{entry.recorded} of {_count(entry.total, 'point')}, n={verdict.n}, {entry.date}"
        lines.append(f"{margin}Profile {entry.profile}: {basis}")
    if entry.command:
        lines.append(f"{margin}Fill the gap: {entry.command}")
    return "\n".join(lines) + "\n"


def ledger_summary(entries: Sequence[Entry]) -> str:
    """One line: how many claims have which verdict."""
    counts = Counter(entry.verdict.status for entry in entries)
    shares = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    return f"{_count(len(entries), 'claim')}: {shares}." if shares else "0 claims."


def status_text(status: Status, width: int, every_cell: bool) -> str:
    """A profile's line, its command if something is missing, and the incomplete cells.

    A profile of which nothing is recorded has its cells listed only on request (`every_cell`),
    which also lifts the limit of `CELLS_SHOWN`.
    """
    missing = status.total - status.recorded
    line = f"  {status.profile:<6} {status.recorded:>4} of {_count(status.total, 'point')}"
    if status.recorded:
        line += f", took {duration(status.seconds_spent)}"
    if missing:
        line += f"; {missing} missing{_about(status.seconds_left)}"
    margin = " " * 9
    lines = [line]
    if status.bytes_left:
        lines.append(f"{margin}downloads: at most {gigabytes(status.bytes_left)}")
    if status.command:
        lines.append(f"{margin}fill: {status.command}")
    if missing and (status.recorded or every_cell):
        shown = status.missing if every_cell else status.missing[:CELLS_SHOWN]
        lines += [wrapped(str(cell), width, margin, margin + "  ") for cell in shown]
        if hidden := len(status.missing) - len(shown):
            lines.append(
                f"{margin}and {_count(hidden, 'more cell')}: emergence status {status.experiment}"
            )
    return "\n".join(lines)


def sweep_plan(status: Status, n_points: int, workers: int) -> str:
    """What a sweep of `n_points` of the missing points is about to do."""
    missing = status.total - status.recorded
    text = (
        f"{status.experiment}, profile {status.profile}: {status.recorded} of "
        f"{_count(status.total, 'point')} recorded, {missing} missing"
    )
    if not n_points:
        return f"{text}. Nothing to do."
    busy = min(workers, n_points)
    seconds = status.seconds_left * n_points / missing / busy
    text += f"; running {n_points} with {_count(busy, 'worker')}{_about(seconds)}"
    if status.bytes_left:
        text += f", at most {gigabytes(status.bytes_left * n_points // missing)} of downloads"
    return f"{text}."


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """`text` in lines of at most `width` columns; commands and names with hyphens stay whole."""
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def duration(seconds: float) -> str:
    """A time in the units a person would use: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def gigabytes(size: int) -> str:
    """A number of bytes in decimal gigabytes: 0.4 GB, 812 GB."""
    return f"{size / 1e9:.1f} GB" if size < 10e9 else f"{size / 1e9:,.0f} GB"


def _about(seconds: float) -> str:
    """An estimate as an apposition; nothing where none is known."""
    return f", about {duration(seconds)}" if seconds else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
