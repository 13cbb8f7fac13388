"""The ledger: complete, computed from stored rows, and readable by people and tools."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from fake_experiments import FakeGrid, area, make
from markdown_it import MarkdownIt

from emergence_lib.claims import CLAIMS, PAPERS, Claim, ledger, ledger_markdown
from emergence_lib.experiments import EXPERIMENTS, Verdict
from emergence_lib.store import Store

CHECKOUT = Path(__file__).parents[1]
CLAIM = Claim("A-0", "A", "Areas | grow_fast.", "About 9 [F].", "fake", "notebooks/x", "fig-x")


def judge_area(rows):
    """Known answer: the mean area, and how many rows it saw."""
    return Verdict("partly", f"The mean area is {rows['area'].mean():g}.", len(rows))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def experiment(monkeypatch):
    profiles = {"smoke": (FakeGrid(2),), "quick": (FakeGrid(4),), "cpu": (FakeGrid(10),)}
    fake = dataclasses.replace(make(area), profiles=profiles, judges={"A-0": judge_area})
    monkeypatch.setitem(EXPERIMENTS, "fake", fake)
    return fake


def record(store, experiment, seeds, date="2026-11-30T10:00:00+00:00"):
    for point in FakeGrid(max(seeds) + 1).points():
        if point.seed in seeds:
            provenance = {"profile": "quick", "seconds": 2.0, "date": date}
            store.write(point, experiment.run(point, "cpu"), provenance)


def test_every_claim_of_the_three_papers_is_listed_once_and_in_order():
    expected = [f"{p}-{i}" for p, n in (("A", 16), ("B", 14), ("C", 13)) for i in range(1, n + 1)]
    assert [claim.id for claim in CLAIMS] == expected
    assert set(PAPERS) == {"A", "B", "C"}
    assert all(claim.paper == claim.id[0] for claim in CLAIMS)
    assert {p: PAPERS[p].source.split("arXiv ")[1][:10] for p in PAPERS} == {
        "A": "2606.25010",
        "B": "2602.15997",
        "C": "2603.14087",
    }


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_is_a_sentence_with_the_papers_figure_and_where_it_comes_from(claim):
    assert claim.statement.endswith(".")
    assert claim.paper_figure.endswith(".")
    assert re.search(r"\[[EFRX]\]", claim.paper_figure), "says how the number is known"


@pytest.mark.parametrize(
    ("claim", "numbers"),
    [
        ("A-1", "6, 8, 6, 9 and 10"),
        ("A-9", "s=1,2 .336; 3 .366; 4 .507; 5 .604; 8 .670; 13 .493; 14 .380; 15,16 .358"),
        ("B-13", "49K"),
        ("C-6", "direct 7.6 [2.85, 12.38] and -1.0 [-4.69, 2.74]"),
        ("C-7", "2.53 ± .10 plain, 3.29 ± .02"),
    ],
)
def test_the_papers_numbers_are_kept_as_reported(claim, numbers):
    assert numbers in {c.id: c for c in CLAIMS}[claim].paper_figure


def test_claims_and_judges_name_each_other():
    judged = {(name, claim) for name, e in EXPERIMENTS.items() for claim in e.judges}
    assert judged == {(claim.experiment, claim.id) for claim in CLAIMS if claim.experiment}
    assert {claim for _, claim in judged} >= {"A-7", "A-8", "A-9"}


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.experiment], ids=lambda c: c.id)
def test_the_figure_of_a_tested_claim_is_on_its_page(claim):
    source = (CHECKOUT / f"{claim.page}.py").read_text("utf-8")
    assert f'"{claim.figure}"' in source


def test_a_verdict_comes_from_the_rows_of_the_best_profile(store, experiment):
    record(store, experiment, seeds=range(4))
    (entry,) = ledger(store, [CLAIM])
    # 4 of cpu's 10 points are less than half, so quick (4 of 4) decides: 9 + mean(0, 1, 2, 3).
    assert entry.verdict == Verdict("partly", "The mean area is 10.5.", 4)
    assert (entry.profile, entry.recorded, entry.total) == ("quick", 4, 4)
    assert (entry.date, entry.command) == ("2026-11-30", "")


def test_a_gap_in_the_best_profile_is_said_with_the_command_that_fills_it(store, experiment):
    record(store, experiment, seeds=range(5))
    record(store, experiment, seeds=[6], date="2026-12-24T23:00:00+00:00")
    (entry,) = ledger(store, [CLAIM])
    assert (entry.profile, entry.recorded, entry.total) == ("cpu", 6, 10)
    assert entry.verdict.evidence == f"The mean area is {9 + 16 / 6:g}."
    assert entry.date == "2026-12-24"
    assert entry.command == "emergence sweep fake --profile cpu"


def test_without_rows_nothing_is_claimed(store, experiment):
    (entry,) = ledger(store, [CLAIM])
    assert entry.verdict.status == "not tested here"
    assert "'fake'" in entry.verdict.evidence
    assert (entry.verdict.n, entry.profile, entry.date, entry.recorded) == (0, None, None, 0)
    assert entry.command == "emergence sweep fake --profile cpu"


def test_a_judge_that_needs_more_rows_sends_to_the_larger_profile(store, experiment, monkeypatch):
    record(store, experiment, seeds=range(4))
    undecided = Verdict("not tested here", "Too few rows.", 4)
    fake = dataclasses.replace(experiment, judges={"A-0": lambda rows: undecided})
    monkeypatch.setitem(EXPERIMENTS, "fake", fake)
    (entry,) = ledger(store, [CLAIM])
    assert (entry.verdict, entry.profile) == (undecided, "quick")
    assert entry.command == "emergence sweep fake --profile cpu"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "No experiment"), ("gone", "'gone' has no test"), ("fake", "'fake' has no test")],
)
def test_without_a_judge_nothing_is_claimed(store, experiment, name, reason):
    record(store, experiment, seeds=range(4))
    claim = dataclasses.replace(CLAIM, id="A-99", experiment=name)
    (entry,) = ledger(store, [claim])
    assert (entry.verdict.status, entry.command) == ("not tested here", "")
    assert reason in entry.verdict.evidence


def test_the_json_of_an_entry_keeps_its_names(store, experiment):
    record(store, experiment, seeds=range(4))
    (entry,) = ledger(store, [CLAIM])
    assert json.loads(json.dumps(entry.as_dict())) == {
        "id": "A-0",
        "paper": "A",
        "statement": "Areas | grow_fast.",
        "paper_figure": "About 9 [F].",
        "verdict": "partly",
        "evidence": "The mean area is 10.5.",
        "n": 4,
        "profile": "quick",
        "recorded": 4,
        "total": 4,
        "date": "2026-11-30",
        "experiment": "fake",
        "page": "notebooks/x",
        "figure": "fig-x",
        "command": "",
    }


def table_rows(markdown):
    """The body cells of every table, as plain text, read by an independent Markdown parser."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    rows, cells = [], None
    for token in tokens:
        if token.type == "tr_open":
            cells = []
        elif token.type == "inline" and cells is not None:
            cells.append("".join(child.content for child in token.children))
        elif token.type == "tr_close":
            rows.append(cells)
            cells = None
    return [row for row in rows if row[0] != "Claim"]


def test_the_markdown_table_has_every_claim_beside_the_papers_figure(store):
    entries = ledger(store)
    markdown = ledger_markdown(entries)
    rows = table_rows(markdown)
    assert [row[:2] for row in rows] == [[f"{c.id} {c.statement}", c.paper_figure] for c in CLAIMS]
    assert all(len(row) == 3 and row[2].startswith("not tested here.") for row in rows)
    assert re.findall(r"^## Paper (.)", markdown, flags=re.M) == ["A", "B", "C"]
    assert any(entry.command for entry in entries)
    for row, entry in zip(rows, entries, strict=True):
        assert row[2].endswith(entry.command)  # "" where there is none


def test_a_tested_row_of_the_table_shows_basis_and_figure(store, experiment):
    record(store, experiment, seeds=range(5))
    ((claim, paper, here),) = table_rows(ledger_markdown(ledger(store, [CLAIM])))
    assert (claim, paper) == ("A-0 Areas | grow_fast.", "About 9 [F].")
    assert here == (
        "partly. The mean area is 11. Profile cpu, 5 of 10 points, n = 5, 2026-11-30. "
        "See {numref}fig-x. Fill the gap: emergence sweep fake --profile cpu"
    )
