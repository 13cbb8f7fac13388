# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Context: what a longer state costs
#
# > **Claim.** The more positions there are to choose from, the longer the plateau, until the pattern is
# > not learned within the run at all.
# >
# > **Evidence.** The length of the plateau of cellular automata against the size of the state, every run
# > shown, with a power law whose interval counts plateaus that did not end. The verdict, computed from
# > the recorded runs, follows below.
# >
# > **Control.** The same runs with attention pointed at the right positions: what is left of the plateau
# > then is no search for positions. And how often a small state repeats, which makes it easy for another
# > reason.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), section on cellular automata.

# %% tags=["hide-cell"]
# Installs the library on Colab, where it is missing; does nothing elsewhere.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("emergence_lib") is None and "google.colab" in sys.modules:
    address = "https://github.com/emergence-companion/emergence-companion"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", address, "companion"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-e", "companion"], check=True)
    sys.path.insert(0, "companion")

# %% tags=["parameters"]
profile = "quick"  # the live part's grid: smoke, quick, cpu or paper
device = "cpu"  # or "cuda"
# None keeps the profile's own value, which for quick is given in brackets.
seeds = None  # live runs of each kind (1)
state_sizes = None  # S, cells of a state, for example [4, 16] ([16])
biases = None  # strengths c of the attention bias, 0 for none ([0, 4])
steps = None  # training steps at most (600)

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import context
from emergence_lib.experiments.cellular_automata_cell import plateau_level
from emergence_lib.experiments.context import CONTEXT
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "state_sizes": state_sizes, "biases": biases, "steps": steps}
require_device(device)
live_grid = CONTEXT.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size

# %% [markdown]
# ## The question
#
# A cellular automaton turns a row of $S$ cells into the next row: each new cell depends on itself and its
# two neighbours, through a table of 64 entries. The model reads eight such rows, one after the other, and
# predicts every cell. Which of many tables rules a sequence it has to find out from the rows before.
#
# To predict a cell, attention has to pick three positions in the row above. There are more wrong ones the
# longer the rows are. If that search is what takes the time, the plateau should grow with $S$, and
# pointing attention at the three positions should take the growth away.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("A-10"))

# %% [markdown]
# ## Live: train it yourself
#
# One state size with and without attention bias. Training stops where the plateau ends, or when the steps
# are used up: without bias it takes longer than that.

# %%
live = sweep(CONTEXT, live_grid.points(), device=device)
live["bias"] = context.conditions(live)
live[["seed", "state_size", "bias", "plateau_end", "stopped_at", "final_loss"]]

# %% mystnb={"figure": {"caption": "Live runs of the quick profile: loss against training step. The upper guide is ln 4, a guess among four colours; the lower one the loss below which the plateau is over.", "name": "fig-live-context"}, "image": {"alt": "Held-out loss against training step for live runs on cellular automata with and without attention bias, between a guess among four colours and the end of the plateau."}}
palette = [plotting.OKABE_ITO[name] for name in ("orange", "green", "blue", "vermillion", "purple")]
curves = {
    f"S = {size}, {bias}": [
        pd.Series(row.eval_loss, index=row.eval_steps) for _, row in cell.iterrows()
    ]
    for (size, bias), cell in live.sort_values("attention_bias").groupby(
        ["state_size", "bias"], sort=False
    )
}
task = live_grid.cell(live_grid.state_sizes[0], 0.0).task(0)
plotting.loss_curves(
    curves,
    {label: palette[i % len(palette)] for i, label in enumerate(curves)},
    {"a guess: ln 4": math.log(task.colours), "end of the plateau": plateau_level(task)},
)
plt.show()

# %% [markdown]
# ## Recorded: the plateau against the size of the state
#
# The tokens of a batch are fixed, as in the paper: longer states mean fewer sequences. Plateaus that did
# not end enter the fit as "at least this long".

# %%
runs = recorded_if_any(CONTEXT)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Steps until the plateau ends against the size of the state. Dots are runs, open triangles runs still on the plateau when training ended; lines join medians; dotted lines are power laws fitted to all runs with S > 4. Grey diamonds are the paper's means without bias, at its larger sizes and batches; at S = 512 its plateau did not end in 10,000 steps. With bias the paper's ends after about 60 steps at S = 4 and 160 to 204 at every larger S.", "name": "fig-context"}, "image": {"alt": "Steps until the plateau ends against the state size on doubled axes, with and without attention bias, single runs, medians and fitted power laws, the paper's means as grey diamonds."}}
tables = context.by_state_size(runs.rows)
main = {name: table for name, table in tables.items() if len(table) > 1}
plotting.waits(
    {"": ("cells in a state, S", main)},
    {name: plotting.OKABE_ITO["orange" if name == context.NO_BIAS else "green"] for name in main},
    "steps until the plateau ends",
    fits={name: law for name, law in context.fits(runs.rows).items() if name in main},
    paper=context.PAPER_STEPS,
)
plt.show()

# %% [markdown]
# The exponents, beside the one that the paper's own means have:

# %%
context.exponents(runs.rows).style.hide(axis="index").format(precision=2)

# %% [markdown]
# [Zucchet et al.](../book/references.md#zucchet2025) derive that the plateau of sparse attention is a
# power law in the length of the context, and find one in small transformers. Their task has one position
# to find, ours three of them and then a rule, so it is the form that can be compared and not the exponent,
# which in their work changes with task, architecture and optimizer. A power law on a few state sizes is a summary, no proof of
# the form: five sizes cannot tell it from another growing curve.
#
# ### How strong a bias, and where?
#
# The paper gives neither strength nor layers. At one state size several were tried. The layers matter
# here: the window is gathered in the first layer, and the layer after it has to compare windows, for
# which it must look elsewhere. A bias in all layers pulls it away from there.

# %%
context.search_table(runs.rows).style.hide(axis="index").format(precision=0)

# %% [markdown]
# ## The control at small states
#
# A row of four cells has only 256 states. Many sequences come back to an earlier one, and from there on
# copying predicts them without any rule. So the shortest plateau is short for a reason that has nothing
# to do with the number of positions, and $S = 4$ is left out of the fit and of the verdict.

# %% tags=["hide-input"]
context.repeats((4, 8, 16, 32)).style.hide(axis="index").format(precision=3)

# %% [markdown]
# ## What it means
#
# Read the two lines of the figure together. The line without bias holds everything that takes time: to
# find the three positions, and to find the rule. The line with bias holds the second alone. The distance
# between them is the search for positions, and it is this distance that grows with $S$.
#
# What is left with bias is no failure of the bias. The target names the cells that a prediction is made
# of. Which earlier rows show the rule has no fixed place, so no bias can point at it; and there longer
# rows may even help, since they show more of the table. That is a difference from the linear map, where
# the positions are all there is to find.
#
# ## Limits
#
# - Small models, few rules, small batches: the numbers of steps are ours, the comparison between state
#   sizes is what may carry over. The paper's values are drawn for their slope.
# - With the tokens fixed, a batch of long states holds few rules. Part of the growth may be noise of the
#   gradient rather than the number of positions. The paper's design shares this.
# - Positions are rotary here, so that one shift serves all rows. With learned positions every query has to
#   learn its own three keys, and a plateau of this size did not end in a pilot.
# - The bias was chosen at one state size on the first seeds, and the recipe of training by a few pilots,
#   not by a recorded search as on [the linear map](01_linear_map.ipynb).
# - A plateau that did not end within the steps watched may end later: "not learned" means "not within
#   this run".
#
# ## Takeaways
#
# - Longer context, longer plateau; with the positions given, the growth goes.
# - Count the plateaus that did not end. Leaving them out makes the growth look smaller.
# - Before reading the smallest size, ask what else is easy about it.
#
# <details><summary><b>Question.</b> Why does the plateau not lie at ln 4?</summary>
#
# Without telling one rule from another, a model can still learn the pool's average: with $N$ random tables
# the most frequent colour after a neighbourhood is a little more frequent than the others. That is worth
# about $3 / 2N$ nats. The plateau is over when the loss falls clearly below that.
#
# </details>
