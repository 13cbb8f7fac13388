"""Draws the figure of README.md from the recorded runs: ``python book/readme_figure.py``."""

from pathlib import Path

import matplotlib

from emergence_lib import plotting
from emergence_lib.experiments import moving_heads, plateau, watched_rows
from emergence_lib.recorded import recorded

matplotlib.use("Agg")
plotting.use_style()
row = recorded(plateau.PLATEAU).rows.iloc[0]
figure = plotting.watched_run(
    watched_rows.loss_curve(row),
    watched_rows.row_losses(row),
    moving_heads.head_moves(row),
    watched_rows.head_table(row, "row_entropy"),
    watched_rows.head_table(row, "row_alignment"),
    moving_heads.chance_alignment(row),
)
target = Path(__file__).parent / "_static" / "readme-figure.png"
figure.savefig(target, dpi=110, metadata={"Software": None})
print(target)
