# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Top-down: which layer collapses first?
#
# > **Claim.** The collapse of the effective rank runs from the output down: layers near the output
# > collapse first and deepest (B-4).
# >
# > **Evidence.** RankMe of 24 task-levels at every layer and checkpoint, in models of four layers or more.
# > For each task-level of each run: does the last layer lose more of its rank than the first, and is it
# > half-way down sooner? The verdict, computed from the recorded runs, follows below.
# >
# > **Control.** The centred rank, which a growing mean vector cannot move; ties, which a coarse schedule
# > of checkpoints would hide, counted as such.
#
# Source: paper B, [Billa](../book/references.md#billa2026), which counts 32 of 32 pairs of task and model
# in its first version and 28 of 32 in its third. Its criterion is not known to us; ours is stated below.
# Phases and tasks are explained on [the page about the collapse](10_collapse.ipynb).

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
# None keeps the profile's own value.
seeds = None  # live runs
sizes = "1m"  # one size with four layers or more: "1m", "3.2m", "10.6m"
tasks = "copy+mod+mul"  # names joined by "+", or "all"
steps = 60  # training steps
samples = 40  # sequences of each task-level that the rank is measured with

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import top_down_evidence as found
from emergence_lib.experiments.collapse import COLLAPSE
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "sizes": sizes, "tasks": tasks, "steps": steps, "samples": samples}
require_device(device)
live_grid = COLLAPSE.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# The loss pulls at the last layer first: what the output needs reaches lower layers through it. If the
# collapse is what the output asks of the representations, it should start at the top and fade towards
# the embeddings. If it came from the inputs, it would start at the bottom.
#
# For each task-level of a run and each layer, *depth* is the share of its highest rank that a layer has
# lost at its floor, and *half-way* the first checkpoint at which half of the way down is done. The last
# layer is compared with the first. "First and deepest" asks for both: a larger depth, and half-way
# strictly sooner. Two layers that are half-way at the same checkpoint are a tie, and no support.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("B-4"))

# %% [markdown]
# ## Live: train it yourself
#
# Four layers on three tasks, for as many steps as the collapse takes.

# %%
live = sweep(COLLAPSE, live_grid.points(), device=device)
table = found.layer_table(live).groupby("layer")[["depth", "half_way"]].median()
table.style.format(precision=2)

# %% mystnb={"figure": {"caption": "Live run: RankMe of each layer as a share of its highest value so far, for the middle level of each task. Dark is the first layer, light the last.", "name": "fig-live-layers"}, "image": {"alt": "Panels of three task-levels trained live: the rank of each layer over training steps, as a share of its highest value so far, dark for the first layer and light for the last."}}
middle = [level for level in live.task_levels.iloc[0] if level.endswith("2")]
plotting.rank_by_layer(found.layer_panels(live, middle))
plt.show()

# %% [markdown]
# ## Recorded: depth and time by layer

# %%
runs = recorded_if_any(COLLAPSE)
deep = found.deep_runs(runs.rows)
Markdown(f"Source: {runs.label}; {len(deep)} of them have four layers or more. {runs.gap}")

# %% mystnb={"figure": {"caption": "How deep (left) and when (right) each layer collapses, from input to output. A run gives its mean depth and its median step over task-levels; points are means over runs, bars 95 % intervals of the mean from three runs on, else the range.", "name": "fig-falls-by-layer"}, "image": {"alt": "Two panels against the layer: the share of the rank lost, and the training step at which half the way down is done, a line a model size."}}
plotting.falls_by_layer(found.layer_means(runs.rows))
plt.show()

# %% mystnb={"figure": {"caption": "Recorded runs of one size: RankMe of each layer as a share of its highest value so far, for one level of four tasks. Median over runs.", "name": "fig-layers"}, "image": {"alt": "Four panels, a task-level each: the rank of every layer over training steps as a share of its highest value so far, median over recorded runs."}}
one_size = deep[deep["size"] == (deep["size"].iloc[-1] if len(deep) else "")]
plotting.rank_by_layer(found.layer_panels(one_size, ["COPY 2", "CMP 2", "MOD 2", "MUL 2"]))
plt.show()

# %% [markdown]
# ### Who is first, with ties

# %% mystnb={"figure": {"caption": "Which end of the model is half-way down first, over all pairs of run and task-level with a collapse in either end. Grey: both at the same checkpoint.", "name": "fig-first-layer"}, "image": {"alt": "Stacked bars, one a model size and convention: the share of task-levels whose last layer is half-way down first, together with the first layer, or later."}}
plotting.which_end_first(found.first_by_kind(runs.rows))
plt.show()

# %% [markdown]
# The paper's unit is the pair of task and model. By the majority over seeds and levels:

# %% tags=["hide-input"]
words = {True: "deeper and sooner", False: "not both"}
found.counts_by_task(runs.rows).map(lambda held: words.get(held, "no collapse"))

# %% [markdown]
# ## What it means
#
# One cause would make the uncentred rank collapse top-down with nothing learned about the task. Early in
# training the output learns which answers are frequent, alike for every prompt of a task. In the residual
# stream that is a constant vector; it grows where the loss is nearest, and once it outgrows the spread
# around it, RankMe falls. The centred rank does not see a constant: what it shows of the order of the
# layers is about the spread itself. Where the two agree, the constant is not the whole story.
#
# ## Limits
#
# - The residual stream of layer k holds the sum of all blocks up to k. A collapse in an upper layer is
#   therefore one of everything below it plus what the upper blocks add.
# - Layers of one run and levels of one task are not independent: intervals are over runs, and there are
#   few of them. The [status page](../book/status.md) lists what is missing.
# - The floor is the lowest rank of the whole run. A layer whose rank dips twice is timed at the deeper dip,
#   which need not be the early one.
# - First against last layer says nothing of the order in between; the figure by layer does.
# - One position, the last prompt token. The embedding of that token is the same for all prompts, so
#   layer 0 is left out.
#
# ## Takeaways
#
# - Name the criterion before counting layers: deeper, sooner, or both; and count ties.
# - Read the order of the layers in the centred rank too.
#
# <details><summary><b>Question.</b> Could the order be top-down without any gradient reaching the lower layers?</summary>
#
# Yes. With the lower blocks frozen, their rank stays what it is, while the last layer still learns the
# frequent answers and collapses. So the order by itself does not say that the collapse travels down.
#
# </details>
