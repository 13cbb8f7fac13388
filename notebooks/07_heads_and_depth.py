# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Heads and depth: what shape learns sooner?
#
# > **Claim.** More heads shorten the wait. Larger heads help up to a size and then less.
# > More layers hurt on the linear map and help on cellular automata of many rules.
# >
# > **Evidence.** How long runs wait on both tasks: with the number of heads at a fixed size, at a fixed
# > width and with the size at a fixed number; with one to four layers. Every run is shown. The verdicts,
# > computed from the recorded runs, follow below.
# >
# > **Control.** Heads at a fixed width: the model keeps its number of weights, so that more heads are
# > not simply a larger model. And the other task, with training left the same.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), section on architecture.

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
seeds = None  # live runs of each shape (1)
shapes = None  # pairs [heads, head size] of the live runs ([[1, 16], [8, 16], [1, 128]])
state_size = None  # S, bits of the state (8)
steps = None  # training steps at most (800)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import heads_evidence
from emergence_lib.experiments.depth import DEPTH, by_depth
from emergence_lib.experiments.heads import HEADS
from emergence_lib.experiments.linear_map_cell import UNIFORM_LOSS
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "shapes": shapes, "state_size": state_size, "steps": steps}
require_device(device)
live_grid = HEADS.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size

# %% [markdown]
# ## The question
#
# One head has one attention pattern. An output bit of the linear map needs $s$ inputs, so a single head
# has to spread over all of them, and another bit needs others. Several heads can share the work. On a
# task with a single position to find there is nothing to share, and more heads may even be in each
# other's way: [Zucchet et al.](../book/references.md#zucchet2025) report plateaus that are slightly
# longer with more heads.
#
# - Do more heads help because they are more, or because the model is larger?
# - How small may a head be?
# - Does a second layer help where two steps are needed, and hurt where one is enough?
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("A-11", "A-12", "A-13"))

# %% [markdown]
# ## Live: train it yourself
#
# The linear map with one head of the usual size, with eight of them, and with one head as large as the
# eight together: the last two have equally many weights.

# %%
live = sweep(HEADS, live_grid.points(), device=device)
live[["seed", "n_heads", "d_head", "plateau_end", "stopped_at", "solved", "final_loss"]]

# %% mystnb={"figure": {"caption": "Live runs of the quick profile on the linear map: held-out loss against training step, a line a shape. The upper guide is ln 2, the loss of a coin toss; the lower one is the floor of a perfect predictor.", "name": "fig-live-heads"}, "image": {"alt": "Held-out loss against training step for three shapes of attention on the linear map: one small head, eight small heads and one large head, between a coin toss and the floor."}}
palette = [plotting.OKABE_ITO[name] for name in ("orange", "blue", "green", "vermillion", "purple")]
curves = {
    f"{n} × {d}": [pd.Series(row.eval_loss, index=row.eval_steps) for _, row in cell.iterrows()]
    for (n, d), cell in live.groupby(["n_heads", "d_head"], sort=False)
}
plotting.loss_curves(
    curves,
    {label: palette[i % len(palette)] for i, label in enumerate(curves)},
    {
        "plateau: ln 2": UNIFORM_LOSS,
        "floor": live_grid.cell(*live_grid.all_shapes()[0]).task(0).floor,
    },
)
plt.show()

# %% [markdown]
# ## Recorded: heads
#
# On the linear map a run waits until all rows are learned, on cellular automata until the plateau is
# over. The two are no comparison of the tasks: compare along a line.

# %%
heads = recorded_if_any(HEADS)
Markdown(f"Source: {heads.label}. {heads.gap}")

# %% mystnb={"figure": {"caption": "Steps a run waits, along three ways through the grid of heads and head sizes. Left: heads of size 16, so that the model grows with their number. Middle: the product of number and size stays the width of the model, so that its weights stay as many. Right: the number stays, 8 on the linear map and 4 on cellular automata. Dots are runs, open triangles runs that were still waiting; lines join medians.", "name": "fig-heads-sizes"}, "image": {"alt": "Three panels of waiting steps on doubled axes: against the number of heads at a fixed head size, against it at a fixed width, and against the head size at a fixed number, a line for each of the two tasks."}}
panels = {
    "heads of size 16": ("heads", "fixed size"),
    "heads × size = width": ("heads", "fixed width"),
    "8 heads (automata: 4)": ("size of a head", "fixed number"),
}
plotting.waits(
    {
        title: (xlabel, heads_evidence.by_shape(heads.rows, name))
        for title, (xlabel, name) in panels.items()
    },
    plotting.TASK_COLOURS,
    "steps until learned",
)
plt.show()

# %% [markdown]
# ### More heads, or a larger model?
#
# In the left panel the model grows with its heads. The middle panel takes that away. What is left there
# is the trade between many small heads and few large ones: the number of patterns a layer can show at a
# time against how much each can carry. A trade has a best point, so the line need not go one way.

# %% tags=["hide-input"]
Markdown(heads_evidence.width_sentence(heads.rows))

# %% [markdown]
# The paper gives final losses at a fixed width, on a map twice as large. Each stands here above its own
# floor. The smaller map is learned with almost any number of heads, so it is the wait that tells the
# shapes apart, not the end.

# %% mystnb={"figure": {"caption": "Linear map, heads at a fixed width: final loss above the floor. Diamonds with 95 % intervals are means over runs, pale dots runs; on a finite held-out batch a solved run may lie a little below the floor. Grey: the paper's means of three, on its larger map.", "name": "fig-heads-loss"}, "image": {"alt": "Final loss above the floor on the linear map for one to 128 heads at a fixed width, means and runs, beside the paper's values on a map twice as large."}}
plotting.named_estimates(
    heads_evidence.excess_at_fixed_width(heads.rows),
    plotting.TASK_COLOURS,
    "final loss above the floor (nats)",
    guides={"floor": 0.0},
    paper=heads_evidence.PAPER_EXCESS,
)
plt.show()

# %% [markdown]
# ### Do more heads hurt, as Zucchet et al. report?
#
# This is where the two papers seem to disagree. A row of the map and a window of an automaton both ask
# for three inputs at once. With fewer heads than that, one more is one pattern more. Beyond that number a
# head adds a pattern for which there is no input, and there we should see what Zucchet et al. see on a
# task that asks for one.

# %% tags=["hide-input"]
Markdown(heads_evidence.more_than_enough_sentence(heads.rows))

# %% [markdown]
# At a fixed width more heads are also smaller, which may lengthen the wait for that reason alone.
#
# Our reading: the linear map asks for a different set of inputs for every output bit. A head with one
# pattern has to mix the inputs it attends to, and a parity cannot be read from every mixture. So heads
# divide the work, and the claims of the two papers are about different sides of the same line: up to the
# number of inputs heads help, from there on they need not. Where a single position is to be found, a
# second head already lies on the far side.
#
# ## Recorded: depth
#
# Of the paper only the direction is known to us, so there are no grey marks here.

# %%
depth = recorded_if_any(DEPTH)
Markdown(f"Source: {depth.label}. {depth.gap}")

# %% mystnb={"figure": {"caption": "Steps a run waits against the number of layers, with training left the same. Dots are runs, open triangles runs that were still waiting when training ended; lines join medians.", "name": "fig-depth"}, "image": {"alt": "Waiting steps against the number of layers from one to four on doubled axes, a line for the linear map and one for cellular automata, single runs as dots."}}
plotting.waits({"": ("layers", by_depth(depth.rows))}, plotting.TASK_COLOURS, "steps until learned")
plt.show()

# %% [markdown]
# ## What it means
#
# The two tasks need different things. The linear map needs one layer in which enough patterns are shown
# at once; further layers add nothing that is needed, and all of them change while the first searches. On
# cellular automata a cell's window has to be gathered, and then compared with the windows of earlier rows
# to find the rule: two steps, one after the other. A single layer cannot take the second on the result of
# the first. This is our reading of the waits; no pattern was inspected here.
#
# On the linear map runs of one depth differ about as much as depths do, and how sure the difference is, the
# verdict says.
#
# Note where depth helps: in going from one layer to two. Whether more than two help is a question of its
# own, and the figure answers it separately.
#
# So "more heads" and "more layers" are no properties of a model alone. Ask first how many positions the
# task needs at once, and how many steps after one another.
#
# ## Limits
#
# - The linear map has $S = 8$ here, half of the paper's, and is solved soon by the common shape. Effects
#   on large maps may be larger.
# - Learning rates are those searched for one shape and one depth. A deeper model might want another.
# - On cellular automata positions are rotary. A head of size 2 then has a single frequency, so a tiny head
#   lacks positions as well as width.
# - On cellular automata the wait ends with the plateau; a shape that leaves it sooner need not end lower.
# - The power that the verdict gives summarises a line from the fewest heads to the most. Where the line
#   turns, the figure says more.
# - A wait that had not ended after the steps watched may end later.
#
# ## Takeaways
#
# - Compare shapes at a fixed number of weights as well as at a fixed size of a head.
# - Heads are patterns shown at once, layers are steps after one another.
# - A wait that did not end is data: count it.
#
# <details><summary><b>Question.</b> Why can 128 heads of one dimension solve the linear map at all?</summary>
#
# A head of one dimension carries one number a position. That is enough to pass on one bit, and its key
# and query of one dimension can prefer some positions over others. Many such heads together show many
# patterns, and the MLP that follows takes the parity of what they bring.
#
# </details>
