# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Sparsity: which maps are hardest?
#
# > **Claim.** A map is hardest to learn when its rows have a medium number of ones; very sparse and
# > very dense rows are easier.
# >
# > **Evidence.** The loss left after training at every number of ones, for several state sizes and
# > seeds; solve rates with exact intervals; difficulty against the number of subsets to choose from. The
# > verdict, computed from the recorded runs, follows below.
# >
# > **Control.** The dense end without parity: a model that guesses the first output bit and copies it
# > comes within one coin toss of the floor, having learned nothing about the map.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), section on the linear map.
# The task is explained on [the page before](01_linear_map.ipynb).

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
seeds = None  # live runs of each row weight (1)
state_size = None  # S, bits of the state (8)
row_weights = None  # the s to train, for example [1, 4, 8] (every s from 1 to S)
steps = None  # training steps at most (300)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import sparsity
from emergence_lib.experiments.sparsity import SPARSITY
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded
from emergence_lib.sweep import sweep
from emergence_lib.tasks import LinearMap

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "state_size": state_size, "row_weights": row_weights, "steps": steps}
require_device(device)
live_grid = SPARSITY.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# To find the inputs of one output bit, a model has to choose $s$ of $S$ positions. There are
# $\binom{S}{s}$ ways, most of them at $s = S/2$. If finding them is what takes the time, maps of medium
# sparsity should be hardest, and both ends easy: at $s = 1$ a bit is copied, at $s = S$ there is nothing
# to choose.
#
# But a parity of many bits is hard for another reason: it needs more of the MLP, however well attention
# is pointed. And at $s = S$ all output bits are equal, which opens a shortcut. So the dense end needs a
# closer look than the loss gives.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("A-9"))

# %% [markdown]
# ## Live: train it yourself
#
# A small map and few steps: the sparse rows are learned by then, those of medium sparsity are on their
# way, and the densest lie near the shortcut's loss. In five times as many steps the maps up to $s = 5$
# reach the floor, and the denser ones stay about one output bit above it.

# %%
live = sweep(SPARSITY, live_grid.points(), device=device)
table = sparsity.by_row_weight(live)
table[["row_weight", "n", "mean_loss", "excess"]].style.hide(axis="index").format(precision=4)

# %% mystnb={"figure": {"caption": "Live runs of the quick profile: loss at the end of a short training against s, with the floor of a perfect predictor and the loss of the copying shortcut at s = S.", "name": "fig-live-sparsity"}, "image": {"alt": "Final loss against the number of ones in a row of the map for the live runs, between the floor and the loss of a coin toss."}}
size = live_grid.state_size
task = LinearMap(size, size)
plotting.loss_by_sparsity(
    {f"S = {size}, live": table},
    {f"S = {size}, live": plotting.PROFILE_COLOURS["quick"]},
    guides={"floor": task.floor, "copy the first output bit (s = S)": task.dense_copy_loss},
    paper={},
)
plt.show()

# %% [markdown]
# ## Recorded: the loss that is left

# %%
runs = recorded(SPARSITY)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "What is left of the loss after at most 10,000 steps, above the floor of each state size. Points are means, bars the range over seeds; grey diamonds are the paper's for S = 16.", "name": "fig-sparsity"}, "image": {"alt": "Excess of the final loss over the floor against the number of ones in a row, a line a state size, with the paper's values for S = 16 as grey diamonds."}}
tables = sparsity.excess_tables(runs.rows)
plotting.loss_by_sparsity(
    tables,
    {label: plotting.STATE_SIZE_COLOURS[size] for label, size in sparsity.labels(runs.rows)},
    guides={"floor": 0.0},
    paper=sparsity.PAPER_EXCESS,
)
plt.show()

# %% [markdown]
# ### How often is a map solved?
#
# A loss averages over rows. A stricter question is whether a run learns the whole map. With few seeds
# the exact intervals are wide, and they are shown for that reason.

# %% mystnb={"figure": {"caption": "Share of runs that come within 0.002 nats of the floor, with Clopper\u2013Pearson 95 % intervals.", "name": "fig-solve-rates"}, "image": {"alt": "Share of runs that reach the floor against the number of ones in a row, with exact 95 percent intervals, a line a state size."}}
plotting.rates(
    sparsity.solve_rates(runs.rows),
    {label: plotting.STATE_SIZE_COLOURS[size] for label, size in sparsity.labels(runs.rows)},
    "ones in a row of the map, s",
    "share of runs solved",
)
plt.show()

# %% [markdown]
# ### Does difficulty follow the number of subsets?

# %% mystnb={"figure": {"caption": "Excess loss against ln C(S, s), the logarithm of the number of subsets a row could be. One dot a cell (S, s), mean over seeds.", "name": "fig-subsets"}, "image": {"alt": "Excess final loss against the logarithm of the number of subsets of size s, one dot a cell, coloured by state size."}}
plotting.scatter_groups(
    sparsity.against_subsets(runs.rows),
    {label: plotting.STATE_SIZE_COLOURS[size] for label, size in sparsity.labels(runs.rows)},
    "ln C(S, s)",
    "excess of the final loss (nats)",
)
plt.show()

# %% tags=["hide-input"]
Markdown(sparsity.difficulty_sentence(runs.rows))

# %% [markdown]
# ## The control at the dense end
#
# At $s = S$ every output bit is the parity of the whole state, so all output bits are equal. A model
# that guesses the first and copies it $S - 1$ times loses one coin toss: its loss is the floor plus
# $\ln 2 / (2S - 1)$. By its loss such a run looks all but solved. The accuracy of each output bit tells:
# the first stays at chance, and with it all that was to be learned about the map.

# %% mystnb={"figure": {"caption": "Accuracy of each output bit at s = S. A first bit at chance beside later bits at 1 is the copying shortcut; all at 1 is the parity.", "name": "fig-dense-end"}, "image": {"alt": "Accuracy of every output bit at s equal to S, one panel a state size: whether the first bit is at chance while the later ones are copied."}}
dense = sparsity.dense_end(runs.rows)
plotting.bit_accuracy(
    dense, {label: plotting.STATE_SIZE_COLOURS[size] for label, size in sparsity.labels(runs.rows)}
)
plt.show()

# %%
sparsity.dense_table(runs.rows).style.hide(axis="index").format(precision=4)

# %% [markdown]
# ## What it means
#
# The left end is easy where there is little to find. The right end can look easy because the loss counts
# a shortcut almost as highly as the real thing: read the accuracy of the first output bit before calling
# a dense map learned. What lies between is hard for two reasons at once, many subsets and a long parity,
# and a sweep over $s$ alone cannot tell them apart. The attention bias on
# [the page before](01_linear_map.ipynb) can: it removes the first reason and keeps the second.
#
# ## Limits
#
# - The loss after a fixed budget mixes "slow" and "never". A longer budget would move the edges of the
#   hard region, not its middle.
# - Cells differ in how many seeds are recorded; the [status page](../book/status.md) lists what is
#   missing and the command that fills it.
# - Batch and optimizer are ours. The paper's values at $S = 16$ are drawn for the shape of the curve.
#
# ## Takeaways
#
# - The loss after training, as a function of sparsity, is read with its floor, its shortcut and its
#   number of seeds beside it.
# - Never read the dense end from the loss alone.
#
# <details><summary><b>Question.</b> At s = S - 1, does copying the first output bit help?</summary>
#
# Only a little. Each row leaves out one input, so two output bits differ by the two inputs that they
# leave out: $y_i \oplus y_j = x_{a} \oplus x_{b}$. A model that guesses the first bit can get the others
# from it and two inputs each: a search among few candidates instead of one parity of $S - 1$ bits.
#
# </details>
