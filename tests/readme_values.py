"""The README's table of recorded values, made from the merged results in ``book/results``.

``python tests/readme_values.py`` writes it into the README; test_readme.py fails while it is stale.
Points that a running sweep has not merged yet do not count, so a sweep makes nothing stale before
its end.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from emergence_lib.claims import ledger
from emergence_lib.experiments import EXPERIMENTS
from emergence_lib.experiments.base import STATUSES
from emergence_lib.experiments.sparsity import PAPER_FINAL_LOSS, by_row_weight
from emergence_lib.recorded import recorded
from emergence_lib.store import Store

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(
    r"(<!-- recorded values: begin -->\n).*?(<!-- recorded values: end -->)", re.DOTALL
)


def recorded_values() -> str:
    """Markdown: the tested claims' verdicts, and the final losses beside the paper's at S = 16."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (README.parent / "book" / "results").glob("*.parquet"):
            shutil.copy(path, folder)
        return _markdown(Store(folder))


def _markdown(store: Store) -> str:
    tested = [entry for entry in ledger(store) if entry.verdict.status != STATUSES[-1]]
    if not tested:
        return "Nothing is recorded yet.\n"
    lines = ["| Claim | Here | Runs | Profile |", "|:--|:--|--:|:--|"]
    lines += [
        f"| {entry.claim.id}. {entry.claim.statement} | {entry.verdict.status} | {entry.verdict.n} "
        f"| `{entry.profile}` |"
        for entry in tested
    ]
    return "\n".join([*lines, "", *_sparsity(store)]) + "\n"


def _sparsity(store: Store) -> list[str]:
    rows = recorded(EXPERIMENTS["sparsity"], store).rows
    if rows.empty or 16 not in set(rows.state_size):
        return []
    cells = by_row_weight(rows[rows.state_size == 16])
    lines = [
        "Mean loss after training on the linear map, `state_size` 16:",
        "",
        "| `row_weight` | Paper A, nats | Here, nats | Solved |",
        "|--:|--:|--:|--:|",
    ]
    for cell in cells.itertuples():
        if cell.row_weight in PAPER_FINAL_LOSS:
            lines.append(
                f"| {cell.row_weight} | {PAPER_FINAL_LOSS[cell.row_weight]:.3f} "
                f"| {cell.mean_loss:.3f} | {round(cell.solve_rate * cell.n)} of {cell.n} |"
            )
    return lines


def with_values(text: str, values: str) -> str:
    """The README with `values` between the two markers."""
    found = BLOCK.findall(text)
    if len(found) != 1:
        raise ValueError(f"{README.name} has {len(found)} blocks of recorded values, not one")
    return BLOCK.sub(lambda block: block[1] + values + block[2], text)


if __name__ == "__main__":
    README.write_text(with_values(README.read_text("utf-8"), recorded_values()), "utf-8")
