# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Small for large: what the geometry predicts
#
# > **Claim.** A small model can stand in for a larger one as long as the task stays hard for both (B-14).
# > For hard tasks the rank changes before the capability is acquired (B-5), for easy ones it does not
# > (B-12); and it separates easy from hard without predicting the order within a class (B-10).
# >
# > **Evidence.** Floors and steps of acquisition of 24 task-levels in the smallest model and in larger
# > ones; how often the rank's floor comes before acquisition; how often the two are in the same order. The
# > verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** The rank of one task-level beside the acquisition of *another*; random curves with the
# > same moves; two seeds of one size.
#
# Source: paper B, [Billa](../book/references.md#billa2026). Phases and tasks are explained on
# [the page about the collapse](10_collapse.ipynb); the other measures are compared on
# [the page about precursors](12_precursors.ipynb).

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
seeds = None  # live runs of each size
sizes = ["405k", "1m"]  # the smallest first
tasks = "all"  # what the models learn; only runs on "all" are compared
steps = 60  # training steps
samples = 20  # sequences of each task-level that the rank is measured with

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.analysis.precursor import EVENTS
from emergence_lib.claims import evidence
from emergence_lib.experiments import difficulty_evidence as difficulty
from emergence_lib.experiments import proxies_evidence as proxies
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
# If the geometry of a model of minutes told what a model of days will find hard, and when, that would be
# worth having. So three things are asked of it. Do the small model's numbers carry over to a larger one?
# Does the rank move before a capability appears, and is that more than "early comes before late"? And
# does its timing tell which of two tasks comes first?
#
# *Hard* is a word to be careful with. Here the later half of the task-levels that the smallest model
# acquires, and those that it never acquires, are hard. By that definition an early event has an easy
# time with hard tasks, whatever it has to do with them.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown("\n\n".join(evidence(claim) for claim in ("B-14", "B-5", "B-12", "B-10")))

# %% [markdown]
# ## Live: two sizes, side by side
#
# A few dozen steps are enough for the floors: does the larger model collapse as far as the small one, task
# for task?

# %%
live = sweep(COLLAPSE, live_grid.points(), device=device)
pairs = proxies.paired(live)
pairs[["task_level", "floor_small", "floor_large"]].style.hide(axis="index").format(precision=2)

# %% mystnb={"figure": {"caption": "Live runs: the lowest RankMe of each task-level so far, in the larger model against the smallest. The dashed line is equality. After so few steps nearly every task-level counts as hard.", "name": "fig-live-proxies"}, "image": {"alt": "Scatter on log axes of the lowest RankMe of each task-level in the larger live model against the smallest, around the line of equality."}}
plotting.small_for_large(pairs, {"floor": "floors"})
plt.show()

# %% [markdown]
# ## Recorded: small for large

# %%
runs = recorded_if_any(COLLAPSE)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "The larger model against the smallest, a dot a task-level (means or medians over seeds), by whether the task-level is hard for both. What one of them never acquires has no step.", "name": "fig-proxies"}, "image": {"alt": "Scatter plots on log axes of floors and of steps of acquisition, larger model against the smallest, a row a size, coloured by whether the task-level is hard for both."}}
plotting.small_for_large(proxies.paired(runs.rows), proxies.QUANTITIES)
plt.show()

# %%
table = proxies.transfer_table(runs.rows)
table.style.hide(axis="index").format(precision=2, na_rep="too few")

# %% [markdown]
# ## Does the rank lead, and is it more than chance?
#
# *Another task-level's rank*: the same events, paired with the acquisition of another task-level of the
# class, averaged over all such pairs. *Its own moves, shuffled*: a random curve made of the differences of
# the measured one. Where these lead as often, the rank leads because it is early, and for no other reason.

# %% mystnb={"figure": {"caption": "Share of acquired task-levels whose rank's onset, floor or half recovery comes before acquisition, beside what chance gives. Means over runs, with 95 % intervals from three runs on.", "name": "fig-led-by-chance"}, "image": {"alt": "Two panels, easy and hard task-levels: how often onset, floor and recovery of the rank come before acquisition, beside the rates with another task-level's rank and with shuffled moves."}}
plotting.led_by_chance(difficulty.chance_rates(runs.rows, EVENTS))
plt.show()

# %% [markdown]
# ## Does its timing tell the order?

# %% mystnb={"figure": {"caption": "Concordance of the time of the rank's floor, and of half its recovery, with the time of acquisition, over pairs of task-levels of one run. A dot is a run, a bar the mean; 0.5 is chance.", "name": "fig-concordance"}, "image": {"alt": "Two panels of concordance within the easy task-levels, within the hard ones and between the classes, a dot a run, with a dashed line at one half."}}
titles = {"floor": "time of the floor", "recovery": "half the recovery"}
plotting.concordances(
    {title: difficulty.concordance_table(runs.rows, event) for event, title in titles.items()}
)
plt.show()

# %% [markdown]
# ## What it means
#
# That the rank moves first is close to certain before any run is made: the floor lies within the first
# steps, and accuracy needs more than that. What the rate with another task-level's rank leaves over is the
# part that is about *this* task. It cannot be more than what that other rate lacks to 100 %, so where the
# rank always leads, "reproduced" for B-5 rests on a handful of task-levels. And where the easy task-levels
# are led as often as the hard ones, which the verdict on B-12 counts, leading does not tell the two apart:
# leading then says only that the floor is early. The order of two tasks is a sharper question than
# "before or after", since nothing answers it for free.
#
# A correlation over task-levels between sizes has a free part too. Prompts with two different tokens have a
# low rank in any model, trained or not. [The page about the collapse](10_collapse.ipynb) compares floors
# with the untrained model.
#
# ## Limits
#
# - Which task-levels are hard is our definition, from the smallest model; the paper's is not known to us.
# - Larger sizes have few seeds and some of them fewer steps. What is not acquired by then counts as hard;
#   the [status page](../book/status.md) lists what is missing.
# - Task-levels that one size never acquires share the last place in its order; those that neither
#   acquires are left out of the correlation of steps.
# - Hidden knowledge, the other half of B-12, is what probes read: see
#   [the page about precursors](12_precursors.ipynb).
#
# ## Takeaways
#
# - "It leads" needs a second number: how often something unrelated leads.
# - A proxy has to be right where it matters, among the tasks that stay hard.
#
# <details><summary><b>Question.</b> Could a precursor of every task still be useful?</summary>
#
# As a sign that training has begun to do anything, yes. As a warning of one capability, no: it says the
# same of those that come next week as of those that never come.
#
# </details>
