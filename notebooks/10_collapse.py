# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Collapse, recovery, acquisition
#
# > **Claim.** While a model learns, the effective rank of its representations first falls, then rises
# > again, and only then are capabilities acquired, for every task and at every size (B-1). How far it
# > falls depends on the task more than on the size (B-2); floors and the order of acquisition agree
# > between sizes (B-3); nearly everything is acquired in the end (B-9).
# >
# > **Evidence.** RankMe and accuracy of 24 task-levels at every checkpoint of models of several sizes
# > and seeds. The verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** Models trained on shuffled answers, where nothing can be acquired; the untrained model;
# > the centred rank, which a growing mean vector cannot move; each task trained alone; another
# > optimizer.
#
# Source: paper B, [Billa](../book/references.md#billa2026). The paper's tasks are named but their formats,
# levels and training settings are not known to us; ours are short sequences, shown below.

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
seeds = None  # live runs (1)
sizes = None  # for example "405k" or ["405k", "1m"] (405k)
tasks = None  # names joined by "+", or "all" ("copy+mod+mul")
steps = None  # training steps (300)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import collapse_phases as found
from emergence_lib.experiments.collapse import COLLAPSE
from emergence_lib.experiments.collapse_cell import multi_task
from emergence_lib.experiments.collapse_evidence import shuffled_sentence, size_agreement
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep
from emergence_lib.tasks import MultiTask

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "sizes": sizes, "tasks": tasks, "steps": steps}
require_device(device)
live_grid = COLLAPSE.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# Take the hidden states of a model at the last token of the prompt, just before it says its answer, for
# many prompts of one task. How many directions do they use? RankMe turns their singular values into
# shares $p_i$ and counts $\exp(-\sum_i p_i \ln p_i)$: 1 when all vectors are parallel, as many as there
# are dimensions when all directions are used alike. If geometry changes before behaviour does, this
# number should move while the accuracy is still at chance.
#
# There are eight tasks in three levels. One model of a size learns them all; only the answer counts in
# the loss, and an answer is right only when all of its tokens are.

# %%
batch = MultiTask().balanced(1, torch.Generator().manual_seed(0))
symbols = [*"0123456789", "copy", "rev", "cmp", "par", "add", "mod", "sort", "mul", "|", "=", ""]
for part, row in zip(MultiTask().parts, batch.tokens, strict=True):
    example = " ".join(symbols[token] for token in row)
    print(f"{part.label:7}  {example:35}  chance {part.chance:.4f}")

# %% [markdown]
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown("\n\n".join(evidence(claim) for claim in ("B-1", "B-2", "B-3", "B-9")))

# %% [markdown]
# ## Live: train it yourself
#
# The smallest model on three tasks for a few hundred steps, which is enough for the first two phases, and
# for all three where the task is easy. Look at modular arithmetic: its rank falls with all the others in
# the first steps, comes back, and then falls a second time, deeper.

# %%
live = sweep(COLLAPSE, live_grid.points(), device=device)
table = found.phase_table(live)
table[["task_level", "untrained", "floor", "floor_step", "acquired", "final_accuracy"]].style.hide(
    axis="index"
).format(precision=2, na_rep="no")

# %% mystnb={"figure": {"caption": "Live run of the quick profile: RankMe at the last layer and prompt token (blue), the centred rank (green) and accuracy (red) of each task-level. Shades: collapse up to the floor of RankMe, recovery up to acquisition.", "name": "fig-live-collapse"}, "image": {"alt": "Panels of the task-levels trained live: RankMe falls within the first steps and rises again while accuracy is still low."}}
plotting.three_phases(found.phase_panels(live, live.task_levels.iloc[0]), columns=3)
plt.show()

# %% [markdown]
# ## Recorded: the three phases

# %%
runs = recorded_if_any(COLLAPSE)
main = multi_task(runs.rows)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "The smallest model on all tasks: RankMe (blue), the centred rank (green) and accuracy (red) of the middle level of each task. Thin lines are runs, bold ones medians. Shades at medians over runs: collapse up to the floor of RankMe, recovery up to acquisition.", "name": "fig-collapse"}, "image": {"alt": "Eight panels, one a task at its middle level, of RankMe and accuracy over training steps of the smallest model, with the phases of collapse and recovery shaded."}}
smallest = main[main["size"] == "405k"]
middle = [part.label for part in MultiTask().parts if part.level == 2]
plotting.three_phases(found.phase_panels(smallest, middle))
plt.show()

# %% [markdown]
# ### How deep, by task and size

# %% mystnb={"figure": {"caption": "Lowest RankMe of every task-level. Points are means over runs; bars are 95 % intervals of the mean from three runs on, else the range. Dashes are the untrained model. Grey: the paper's floor of modular arithmetic.", "name": "fig-floors"}, "image": {"alt": "Lowest RankMe of each of 24 task-levels on a log scale, a colour a model size, with the untrained model's rank as dashes and the paper's value for modular arithmetic in grey."}}
plotting.floors_by_task(found.floor_table(main), paper={"MOD": 2.0})
plt.show()

# %% [markdown]
# ### Do sizes agree?

# %% mystnb={"figure": {"caption": "Rank correlation over task-levels between pairs of sizes, with 95 % bootstrap intervals over task-levels. Grey: the paper's, above .92.", "name": "fig-size-agreement"}, "image": {"alt": "Spearman correlations between model sizes of the floors and of the order of acquisition, a point with its interval a pair of sizes."}}
titles = {"floor": "floors", "order": "order of acquisition"}
plotting.agreement_of_sizes(size_agreement(runs.rows), titles, bar=0.92)
plt.show()

# %% [markdown]
# ## The controls
#
# A collapse that also happens where nothing can be learned is no sign of learning. A collapse of the
# uncentred rank that the centred rank does not share is a mean vector that grew: at the first steps all
# prompts of a task are pushed towards the same answers. Where the two ranks have their floors at
# different steps, as the verdict of B-1 says beside each other, they show two events, not one.

# %% mystnb={"figure": {"caption": "Share of the peak rank lost at the floor, by kind of run and by convention. Dots are task-levels (means over runs), bars their medians.", "name": "fig-collapse-controls"}, "image": {"alt": "Depth of the collapse of every task-level for models on all tasks, on shuffled answers, on one task alone and with AdamW, uncentred beside centred."}}
plotting.collapse_depths(found.depth_groups(runs.rows))
plt.show()

# %% tags=["hide-input"]
Markdown(shuffled_sentence(runs.rows))

# %% [markdown]
# ## What it means
#
# The order of the phases is easy to satisfy: where the floor lies within the first steps, when nothing
# can have been acquired yet, whatever is acquired later comes after it. So the order alone does not make
# the collapse a precursor of *this* capability. A model on shuffled answers has nothing to acquire: what
# collapses there as well needs nothing to learn, and the sentence above says how much that is. Whether
# the rank *comes back* is another matter, and that sentence counts it too. The centred rank shows how
# much of the fall is a mean that moves.
#
# "Nearly everything is acquired" is about the length of a run as much as about the model: what the verdict
# on B-9 lists as never acquired was not acquired by its last step.
#
# What does tell tasks apart is how deep the rank falls and how long it stays there. Where the answer
# is one of a few tokens the floor is low from the start, in the untrained model too: compare the dashes
# in the figure of the floors before reading a floor as something that training did.
#
# ## Limits
#
# - Formats, levels, learning rate, batch and steps are ours. The levels are small enough for minutes of
#   training, and the smallest have fewer than 130 different inputs: there, to learn is to memorise.
# - The largest size of the recorded grid is trained for fewer steps, and larger sizes have few seeds;
#   the [status page](../book/status.md) lists what is missing and the command that fills it.
# - Muon trains the mixers' matrices. The control with AdamW alone, the paper's optimizer, is in the last
#   figure where it is recorded.
# - RankMe is measured with 80 different sequences of each task-level, the paper's with 200, so it cannot
#   exceed 80.
#
# ## Takeaways
#
# - Read a rank with its untrained value, its centred twin and a run without anything to learn beside it.
# - Early comes before late whatever the two have to do with each other.
#
# <details><summary><b>Question.</b> Why is the rank of parity so low even before training?</summary>
#
# Its prompts are made of two different tokens, and the hidden state at "=" of an untrained model is
# nearly an average of what it sees: a count of ones and zeros plus a constant. That is one direction
# beside the mean, however many bits there are.
#
# </details>
