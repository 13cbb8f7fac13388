"""Draws the figure of README.md from the recorded runs: ``python book/readme_figure.py``."""

from pathlib import Path

import matplotlib

from emergence_lib import plotting
from emergence_lib.experiments import plateau
from emergence_lib.recorded import recorded

matplotlib.use("Agg")
plotting.use_style()
row = recorded(plateau.PLATEAU).rows.iloc[0]
figure = plotting.watched_run(
    plateau.loss_curve(row),
    plateau.row_losses(row),
    plateau.entropy_drops(row),
    plateau.head_table(row, "row_entropy"),
)
target = Path(__file__).parent / "_static" / "readme-figure.png"
figure.savefig(target, dpi=110, metadata={"Software": None})
print(target)
