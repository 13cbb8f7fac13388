# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Toy patching: is a pattern enough?
#
# > **Claim.** In Pythia, attention maps taken from after an emergence and put into the model from before it
# > recover most of the gain (A-5, [tested on its own page](04_patching.ipynb)). Does that hold in a toy model,
# > where every jump is known? Independent replications report that it recovers nothing there, and that
# > values and MLP must move too.
# >
# > **Evidence.** Around every jump of many toy runs, parts of the later model are put into the earlier one, and
# > the other way round. What each part carries is computed from the recorded runs and follows below. No verdict
# > of the ledger hangs on it.
# >
# > **Control.** The same move with a model from as long *before* the jump as the later one is after it.
#
# Source: the move is that of paper A, [Baherwani et al.](../book/references.md#baherwani2026), section on
# Pythia; the tasks are those of its toy sections. To put the two together is ours.

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
seeds = None  # live runs (2)
task = None  # "linear_map" or "cellular_automata" ("linear_map")
state_size = None  # S (8)
row_weight = None  # s, of the linear map (3)
steps = None  # training steps at most (1000)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.experiments import toy_patching_evidence as found
from emergence_lib.experiments.toy_patching import TOY_PATCHING
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "task": task, "state_size": state_size}
given |= {"row_weight": row_weight, "steps": steps}
require_device(device)
live_grid = TOY_PATCHING.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size

# %% [markdown]
# ## The question
#
# On the linear map each abrupt drop of the loss is one row being learned. Take the last checkpoint before
# such a drop and the first after it. Between them the model learned to predict one output bit. Which of its
# parts learned it?
#
# - **Patterns**: where each head looks. The values that are read there stay the earlier model's.
# - **Values**: what is there to be read. **Patterns and values** together are what the heads gather.
# - **The attention block**: the output of attention, so with the map that writes it into the stream.
# - **The MLP**, and **block and MLP** together, which in a single layer is all but embeddings and readout.
#
# All of them are moved as *outputs*: what the later model computes on the same sequences is put in place. The
# MLP's output already holds what the later attention gathered. So parts are also moved as *weights*: then the
# earlier model computes them from its own stream.
#
# The measure is the probability of the right bit at the output that jumped, as a share of its rise: 0 is the
# model before, 1 the model after. Other rows learned in the meantime do not count.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
runs = recorded_if_any(TOY_PATCHING)
Markdown(" ".join(found.toy_sentence(runs.rows, task) for task in found.TASK_NAMES))

# %% [markdown]
# ## Live: train and patch
#
# A few runs on a small map, a checkpoint every 25 steps, and every part moved around every jump.

# %%
live = sweep(TOY_PATCHING, live_grid.points(), device=device)
live[["seed", "jumps", "pre_steps", "post_steps"]]

# %% mystnb={"figure": {"caption": "Live runs of the quick profile: share of a jump that moving each part carries. Diamonds are means over runs, pale dots single runs.", "name": "fig-live-toy-patching"}, "image": {"alt": "Share of a jump carried by each moved part in the live runs, for moves of the later model's part into the earlier model, the reverse, and the control from an earlier checkpoint."}}
plotting.named_estimates(
    found.share_groups(live, live_grid.task),
    plotting.MOVE_COLOURS,
    "share of the jump",
    guides={"nothing": 0.0, "all of it": 1.0},
)
plt.show()

# %% [markdown]
# ## Recorded: the linear map

# %%
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Linear map: share of a jump that moving each part carries. Blue: from the model after into the model before, 1 recovers all. Purple: the reverse, 1 undoes all. Grey: control, from as long before the jump. Diamonds with 95 % intervals are means over runs, pale dots runs.", "name": "fig-toy-patching"}, "image": {"alt": "Linear map: share of a jump carried by patterns, values, the attention block, the MLP and their weights, moved forward, in reverse, and from an earlier checkpoint as a control."}}
plotting.named_estimates(
    found.share_groups(runs.rows, "linear_map"),
    plotting.MOVE_COLOURS,
    "share of the jump",
    guides={"nothing": 0.0, "all of it": 1.0},
)
plt.show()

# %%
found.parts_table(runs.rows, "linear_map").style.hide(axis="index")

# %% [markdown]
# ## Recorded: cellular automata
#
# Two layers, and many rules. There is one rise rather than a staircase, and it is wide: from before to after
# the whole model moves a good deal.

# %% mystnb={"figure": {"caption": "Cellular automata: the same moves around the rise of the probability of the right cell, in all layers at once.", "name": "fig-toy-patching-automata"}, "image": {"alt": "Cellular automata: share of the rise carried by patterns, values, the attention block, the MLP and their weights, moved forward, in reverse, and from an earlier checkpoint as a control."}}
plotting.named_estimates(
    found.share_groups(runs.rows, "cellular_automata"),
    plotting.MOVE_COLOURS,
    "share of the rise",
    guides={"nothing": 0.0, "all of it": 1.0},
)
plt.show()

# %%
found.parts_table(runs.rows, "cellular_automata").style.hide(axis="index")

# %% [markdown]
# ## The control
#
# Any foreign part disturbs a model, and parts of a run drift all the time. The grey marks show the move from a
# checkpoint as far before the jump: what drift alone does over the same number of steps. It need not be
# exactly zero, since the model just before a jump has already begun to rise. Where no checkpoint lies so far
# before, as with a rise as wide as that of the automata, the control is unknown.
#
# ## What it means
#
# Forward and reverse answer two questions. Forward: is the new part *enough* for the old model? Reverse: does
# the new model *need* it? A part can be needed without being enough. A row of the map is a parity: the heads
# bring the right bits to one place, and the MLP has to compute their parity there. An MLP that has never seen
# these bits together has nothing to compute it with, so a right pattern alone changes little.
#
# In a language model the rest of the machinery may have been there for long, learned for other purposes, and
# wait for the pattern. That would make the pattern both needed and enough, and it would be a difference
# between the settings rather than a contradiction.
#
# ## Limits
#
# - Moved as outputs, the MLP's part includes what the later attention gave it. Read it beside the weights.
# - The jump is bounded by 10 % and 90 % of the way, so its ends are up to some hundred steps apart. Pythia's
#   checkpoints lie far wider apart.
# - All heads move at once, at all positions. Nothing here ranks heads.
# - On the automata the end is the end of training, where the rise still goes on. So wide a rise moves embeddings
#   and readout too: what block and MLP together leave of it lies there.
#
# ## Takeaways
#
# - "Causal" has two directions. Report both, and the control.
# - What a patch recovers depends on what the receiving model can already do with it.
#
# <details><summary><b>Question.</b> Why can the MLP's output recover much more than its weights?</summary>
#
# The output was computed in the later model, after its own attention had gathered the bits: it already holds
# their parity. The weights, put into the earlier model, get what the earlier attention gathers. They know what
# to do with bits that never arrive.
#
# </details>
