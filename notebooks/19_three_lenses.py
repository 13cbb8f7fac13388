# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Three lenses on one run
#
# > **Claim.** None of the papers makes it: each looks at training with its own instrument. If all three
# > see the same event, their measures should move together; if not, one of them moves first.
# >
# > **Evidence.** The same runs, seen at the same steps by the instruments of all three papers: attention
# > (A), effective rank (B), and the share of the gradient that later predictions send (C). For each
# > query the step at which it is learned, and how far ahead of that each measure has moved.
# >
# > **Control.** Two. A measure may move early merely because everything moves early: so each query's
# > measure is compared with when the *other* queries of the same run are learned. And the same map is
# > trained with the right attention given as a bias, so that there is nothing left to search for.
#
# Sources: papers A, B and C, [Baherwani et al.](../book/references.md#baherwani2026),
# [Billa](../book/references.md#billa2026) and [Rofin et al.](../book/references.md#rofin2026). Their
# instruments have pages of their own: [attention](01_linear_map.ipynb), [rank](10_collapse.ipynb),
# [gradients](14_toy_precaching.ipynb).

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
seeds = None  # live runs of each condition (1)
# What to train: a list of "linear map", "linear map, bias", "cellular automata" (["linear map"]).
conditions = None
steps = None  # training steps (1000)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.experiments import lenses_evidence
from emergence_lib.experiments.lenses import COMPARED, LENSES
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "conditions": conditions, "steps": steps}
require_device(device)
live_grid = LENSES.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# A plateau ends. Paper A says that a head has found the right keys. Paper B says that the
# representation had collapsed and spread again before. Paper C says that the gradient reaches a feature
# by several routes, among them from later predictions that use it. These could be three views of one
# event, or three events in a row.
#
# The queries below are positions with something to predict from: the output bits of a
# [linear map](01_linear_map.ipynb), or cells of a [cellular automaton](06_context.ipynb) spread over its
# states. Each query has a loss of its own, so a run has several events, and each can be compared with
# what every lens shows *at that query*.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
runs = recorded_if_any(LENSES)
rows = runs.rows[runs.rows["condition"].isin(COMPARED)]  # the other conditions are the forecast's
Markdown(f"Source: {runs.label}. {runs.gap}\n\n{lenses_evidence.answer(rows)}")

# %% [markdown]
# ## Live: one run, every lens
#
# A small linear map. Each line is one output bit; the ticks on top say when it was learned. The rank is
# that of the vectors at the query, over sequences.

# %%
live = sweep(LENSES, live_grid.points(), device=device)

# %% mystnb={"figure": {"caption": "A live run through all lenses, a line a query, dark for those learned first. Ticks at the top edge: when the query of that colour was learned. Grey: not learned. The last panel is one number for the whole model.", "name": "fig-live-lenses"}, "image": {"alt": "Five panels over training steps of one live run: loss, attention on the needed keys, attention entropy and effective rank of each query, and the pre-cached share of the gradient."}}
plotting.lens_panels(*lenses_evidence.panels(live.iloc[0]))
plt.show()

# %% [markdown]
# ## Recorded: which lens moves first?
#
# A measure has *moved* when it is half of the way from its first value to its last, a query is *learned*
# when its loss is half of the way from a guess to its end. The lead is the difference in steps.

# %% mystnb={"figure": {"caption": "Lead of each measure over the learning of its query. Pale dots are runs (means over their queries), diamonds means over runs with 95 % intervals. Right of the dashed line the measure moves first.", "name": "fig-lens-leads"}, "image": {"alt": "Steps by which attention, attention entropy, two effective ranks and the pre-cached share of the gradient move ahead of learning, a colour for each of three conditions, dots for runs and diamonds with intervals for means."}}
plotting.named_estimates(
    lenses_evidence.lead_groups(rows),
    plotting.TASK_COLOURS,
    "steps ahead of learning",
    guides={"together": 0.0},
)
plt.show()

# %% mystnb={"figure": {"caption": "The first recorded run on cellular automata through all lenses, drawn as above.", "name": "fig-recorded-lenses"}, "image": {"alt": "Five panels over training steps of one recorded run on cellular automata: loss, attention on the needed keys, attention entropy and effective rank of each query, and the pre-cached share of the gradient."}}
plotting.lens_panels(*lenses_evidence.first_run(rows, "cellular automata"))
plt.show()

# %% [markdown]
# ## Control: is it about this query?
#
# *Nearer* is the share of comparisons in which a move lies nearer to the learning of its own query than
# to that of another query of the same run. One half means that the measure tells nothing about *which*
# query is learned, however early it moves.

# %%
lenses_evidence.control_table(rows).style.hide(axis="index")

# %% [markdown]
# ## Does the bias that removes the plateau remove the collapse?

# %% tags=["hide-input"]
Markdown(lenses_evidence.bias_sentence(rows))

# %% [markdown]
# ## Which route does the gradient take?

# %% mystnb={"figure": {"caption": "Share of the squared gradient at the residual stream, below the last block, that comes from later predictions (pre-cached): before training, when half of the learned queries are learned, and at the end. A thin line a run, the mean bold.", "name": "fig-lens-gradient"}, "image": {"alt": "Pre-cached share of the gradient at three moments of each run, a panel for each condition: untrained, when the queries are learned, and at the end."}}
plotting.before_at_after(
    lenses_evidence.precached_at_learning(rows),
    plotting.TASK_COLOURS,
    "pre-cached share\nof the gradient",
)
plt.show()

# %% [markdown]
# ## What it means
#
# Read the leads together with the control. A measure that moves long before learning *and* is no nearer
# to its own query marks a phase of training, not an event: it says that something will come, not what.
# A measure that moves with its own query is the event seen from another side. The verdict above says
# which is which on each task, and it depends on the task: where the rule must be read from the context,
# pointing at the right cells is only the first half of the way.
#
# ## Limits
#
# - Half-way is one definition of "moved"; a measure that drifts slowly has its half-way anywhere.
# - The best head is chosen anew at each step, which favours alignment a little.
# - Two tasks and small models. Modular addition and the pocket suite are not here yet.
# - Looking every 25 steps, leads below that are not resolved.
#
# ## Takeaways
#
# - Look at each query by itself: means over queries blur several events into one slow one.
# - Put the control beside every lead. Early is not the same as informative.
#
# <details><summary><b>Question.</b> Under the attention bias the heads' alignment starts high. Why can it
# still move after the loss has fallen?</summary>
#
# The bias adds to the logits what the heads would have to learn, so the loss falls without their help.
# The heads go on sharpening afterwards: half of the way from a high start to 1 is a small and late step.
# A lead below 0 there says that the loss did not wait for it.
#
# </details>
