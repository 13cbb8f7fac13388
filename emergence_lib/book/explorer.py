"""The explorer's data and markup: recorded runs, as a page can read them without a server.

    book/_static/explorer-data.js    written by `explorer_script` from the store at each build
    book/_static/explorer.js, .css   draw it; plain JavaScript, nothing is fetched
    book/explorer.md                 asks for `explorer_markup`

A script rather than a JSON file, because a page opened from a disk may not fetch one.
"""

from __future__ import annotations

import html
import json
from typing import Any

import numpy as np
import pandas as pd

from emergence_lib.experiments.explorer import EXPLORER
from emergence_lib.experiments.lenses_evidence import curve, guess_loss, learned
from emergence_lib.recorded import recorded_if_any

DATA_FILE = "explorer-data.js"

FALLBACK_STEPS = (0, 100, 250, 500, 1_000, 2_000, 3_000)
"""Steps of the table that is shown where no script runs."""

_BY_QUERY = {"loss": ("query_loss", 4), "alignment": ("alignment", 4), "rank": ("rankme", 2)}


def explorer_rows() -> pd.DataFrame:
    """The first recorded run of each condition; no row where nothing is recorded."""
    return recorded_if_any(EXPLORER).rows.drop_duplicates("condition")


def run_data(row: pd.Series) -> dict[str, Any]:
    """One recorded run as plain lists.

    Returns:
        name, seed, steps [evaluation]; loss, alignment and rank [query][evaluation]; precached
        [evaluation]; learned [query], a step or None; guess (nats); queries, needed, heads; pattern
        (base64) and shape as in `experiments.explorer`.
    """
    events = [learned(row, query) for query in range(len(row["query_loss"]))]
    by_query = {
        name: [curve(row, column, query).round(digits).tolist() for query in range(len(events))]
        for name, (column, digits) in _BY_QUERY.items()
    }
    return {
        "name": row["condition"],
        "seed": int(row["seed"]),
        "steps": [int(step) for step in row["eval_steps"]],
        **by_query,
        "precached": curve(row, "precached").round(3).tolist(),
        "learned": [event.step if event.observed else None for event in events],
        "guess": round(guess_loss(row["condition"]), 4),
        "queries": [int(query) for query in row["queries"]],
        "needed": [[int(key) for key in keys] for keys in row["needed"]],
        "heads": int(row["heads"]),
        "pattern": row["pattern"],
        "shape": [int(size) for size in row["pattern_shape"]],
    }


def explorer_script(rows: pd.DataFrame) -> str:
    """The data as a script that leaves it in ``window.emergenceExplorer``."""
    runs = [run_data(row) for _, row in rows.iterrows()]
    text = json.dumps({"runs": runs}, separators=(",", ":"), allow_nan=False)
    return f"window.emergenceExplorer = {text};\n"


def fallback_table(rows: pd.DataFrame) -> str:
    """HTML table of what the panels show, at a few steps of each run."""
    lines = []
    for _, row in rows.iterrows():
        steps = np.array([int(step) for step in row["eval_steps"]])
        for at in sorted({int(np.abs(steps - step).argmin()) for step in FALLBACK_STEPS}):
            means = [np.mean([values[at] for values in row[c]]) for c, _ in _BY_QUERY.values()]
            cells = [row["condition"], f"{steps[at]:,}", f"{means[0]:.3f}", f"{means[1]:.2f}"]
            cells += [f"{means[2]:.1f}", f"{row['precached'][at]:.0%}"]
            lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("run", "step", "loss, nats", "attention on needed keys", "effective rank",
                     "gradient from later predictions")
    )  # fmt: skip
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def explorer_markup(rows: pd.DataFrame) -> str:
    """The explorer as one block of HTML, without an empty line, at which Markdown would end it."""
    if rows.empty:
        command = "emergence sweep explorer --profile cpu"
        return f"No run is recorded yet; `{command}` records them."
    panels = "\n".join(
        f'<section class="explorer-panel" data-panel="{name}">'
        f'<h2 id="explorer-{name}">{title}</h2>'
        f'<output class="explorer-value"></output><div class="explorer-plot">{plot}</div>'
        f"<p>{note}</p></section>"
        for name, title, plot, note in _PANELS
    )
    return _MARKUP.format(panels=panels, table=fallback_table(rows), data=DATA_FILE)


_PANELS = (
    (
        "attention",
        "Attention of the head",
        '<canvas role="img" aria-labelledby="explorer-attention"></canvas>',
        "A row is a watched query, a column a key, brighter is more. Between white bars: the "
        "keys that the query needs.",
    ),
    ("loss", "Loss of each query", "", "Nats; the dashed line is a guess."),
    ("rank", "Effective rank (RankMe)", "", "Of the vectors at each query, over sequences."),
    (
        "gradient",
        "Where the gradient comes from",
        "",
        "Shares of the squared gradient below the last block: from the position's own prediction "
        "(direct) and from later ones (pre-cached).",
    ),
)

_MARKUP = """\
<link rel="stylesheet" href="../_static/explorer.css">
<div id="explorer" class="explorer" hidden>
<div class="explorer-controls">
<label for="explorer-run">Run</label>
<select id="explorer-run"></select>
<label for="explorer-head">Head</label>
<select id="explorer-head"></select>
<label for="explorer-step">Training step <span id="explorer-at"></span></label>
<div class="explorer-slider">
<button type="button" id="explorer-back" aria-label="One look back">&#8249;</button>
<input type="range" id="explorer-step" min="0" step="1" value="0">
<button type="button" id="explorer-on" aria-label="One look on">&#8250;</button>
</div>
</div>
<ul class="explorer-legend" aria-label="Queries and when each is learned"></ul>
<div class="explorer-panels">
{panels}
</div>
</div>
<noscript>
<p>Scripts are off, so here is a table instead: means over the watched queries, and the attention of
the best head.</p>
{table}
</noscript>
<script src="../_static/{data}" defer></script>
<script src="../_static/explorer.js" defer></script>"""
