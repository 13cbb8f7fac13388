"""The ledger: every claim of the three papers, and what the recorded results say about it.

    claims.toml ─► CLAIMS ─┐
                           ├─► ledger(store) ─► [Entry(claim, verdict, profile, …)] ─► table, JSON
    store.rows ─► judge ───┘

A verdict is never written by hand. It is what the experiment's judge makes of the rows of the best
recorded profile, and "not tested here" wherever there is no judge or no row.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments import EXPERIMENTS, Verdict
from emergence_lib.recorded import best_profile, coverage
from emergence_lib.store import Store

RECORDED_PROFILE = "cpu"
"""The profile that fills an empty ledger entry on an ordinary computer."""


@dataclass(frozen=True)
class Paper:
    """One of the three papers: its letter, title and where it is found."""

    id: str
    title: str
    source: str


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        id: paper and number, "A-9".
        paper: letter of the paper.
        statement: the claim in our words.
        paper_figure: the paper's numbers, each with how we know them (see claims.toml).
        experiment: the experiment whose judge decides, or "".
        page: source path of the page that shows it, without suffix, or "".
        figure: label of the figure on that page, or "".
    """

    id: str
    paper: str
    statement: str
    paper_figure: str
    experiment: str = ""
    page: str = ""
    figure: str = ""


@dataclass(frozen=True)
class Entry:
    """A claim with its verdict.

    Attributes:
        claim: the claim.
        verdict: status, evidence in one sentence, n.
        profile: the profile the verdict rests on, None where nothing is recorded.
        recorded, total: points of that profile.
        date: day of its newest point (YYYY-MM-DD), None where nothing is recorded.
        command: what fills the gap; "" where nothing is missing or no experiment exists.
    """

    claim: Claim
    verdict: Verdict
    profile: str | None = None
    recorded: int = 0
    total: int = 0
    date: str | None = None
    command: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The entry for tools: flat, JSON types only. Names in it are never renamed or dropped."""
        return {
            "id": self.claim.id,
            "paper": self.claim.paper,
            "statement": self.claim.statement,
            "paper_figure": self.claim.paper_figure,
            "verdict": self.verdict.status,
            "evidence": self.verdict.evidence,
            "n": self.verdict.n,
            "profile": self.profile,
            "recorded": self.recorded,
            "total": self.total,
            "date": self.date,
            "experiment": self.claim.experiment,
            "page": self.claim.page,
            "figure": self.claim.figure,
            "command": self.command,
        }


def _read() -> tuple[dict[str, Paper], list[Claim]]:
    data = tomllib.loads(files("emergence_lib").joinpath("claims.toml").read_text("utf-8"))
    papers = {letter: Paper(letter, **paper) for letter, paper in data["paper"].items()}
    return papers, [Claim(paper=claim["id"][0], **claim) for claim in data["claim"]]


PAPERS, CLAIMS = _read()
"""The papers by letter, and every claim in the order of the papers."""


def ledger(store: Store | None = None, claims: Iterable[Claim] = CLAIMS) -> list[Entry]:
    """Judge `claims` on what `store` holds (None: the default store)."""
    store = store or Store()
    return [_judge(claim, store) for claim in claims]


def _judge(claim: Claim, store: Store) -> Entry:
    if not claim.experiment:
        return _untested(claim, "No experiment of this book tests it yet.")
    experiment = EXPERIMENTS.get(claim.experiment)
    if experiment is None or claim.id not in experiment.judges:
        return _untested(claim, f"The experiment {claim.experiment!r} has no test for it.")
    profile = best_profile(experiment, store)
    if profile is None:
        return _untested(
            claim,
            f"Nothing is recorded yet for the experiment {experiment.name!r}.",
            f"emergence sweep {experiment.name} --profile {RECORDED_PROFILE}",
        )
    recorded, total = coverage(experiment, profile, store)
    rows = store.rows(experiment.points(profile))
    verdict = experiment.judges[claim.id](rows)
    wanted = profile if recorded < total else RECORDED_PROFILE
    incomplete = recorded < total or (
        verdict.status == "not tested here" and profile != RECORDED_PROFILE
    )
    return Entry(
        claim,
        verdict,
        profile,
        recorded,
        total,
        date=max(rows["date"])[:10],
        command=f"emergence sweep {experiment.name} --profile {wanted}" if incomplete else "",
    )


def _untested(claim: Claim, why: str, command: str = "") -> Entry:
    return Entry(claim, Verdict("not tested here", why, 0), command=command)


def evidence(*ids: str, store: Store | None = None) -> str:
    """Verdict and evidence of some claims as a Markdown list, for the page that tests them.

    Raises:
        UnknownNameError: a claim that no paper makes.
    """
    by_id = {claim.id: claim for claim in CLAIMS}
    for id_ in ids:
        if id_ not in by_id:
            raise UnknownNameError("claim", id_, by_id)
    lines = []
    for entry in ledger(store, [by_id[id_] for id_ in ids]):
        source = f" (profile {entry.profile}, n = {entry.verdict.n})" if entry.profile else ""
        lines.append(
            f"- **{entry.claim.id}: {entry.verdict.status}**{source}. {entry.verdict.evidence}"
        )
    return "\n".join(lines)


def ledger_markdown(entries: Sequence[Entry]) -> str:
    """The ledger as MyST Markdown: one section and table a paper, the paper's figure beside ours.

    Figures are linked by their label, so that the link carries the figure's number and a label
    that no page defines fails the build.
    """
    lines: list[str] = []
    for paper in PAPERS.values():
        rows = [entry for entry in entries if entry.claim.paper == paper.id]
        if not rows:
            continue
        lines += [
            f"## Paper {paper.id}: {paper.title}",
            "",
            f"{paper.source}.",
            "",
            "| Claim | The paper | Here |",
            "|:--|:--|:--|",
            *(_markdown_row(entry) for entry in rows),
            "",
        ]
    return "\n".join(lines)


def _markdown_row(entry: Entry) -> str:
    claim, verdict = entry.claim, entry.verdict
    here = [f"**{verdict.status}.** {_escape(verdict.evidence)}"]
    if entry.profile is not None:
        here.append(
            f"Profile `{entry.profile}`, {entry.recorded} of {entry.total} points, "
            f"n = {verdict.n}, {entry.date}."
        )
        if claim.figure:
            here.append(f"See {{numref}}`{claim.figure}`.")
    if entry.command:
        here.append(f"Fill the gap: `{entry.command}`")
    cells = (
        f"**{claim.id}** {_escape(claim.statement)}",
        _escape(claim.paper_figure),
        " ".join(here),
    )
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Plain text with what Markdown or a table would read as markup taken literally."""
    return re.sub(r"([\\`*_|<>$\[\]{}])", r"\\\1", " ".join(text.split()))
