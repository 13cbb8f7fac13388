# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A forecast from the first part of a run
#
# > **Claim.** None of the papers makes it. Each says that something can be seen before a capability
# > appears: attention that sharpens (A), a rank that moves (B), a gradient from later predictions (C). If
# > so, the first part of a run should tell *when* its queries will be learned.
# >
# > **Evidence.** Forecasts for runs that the forecaster has never seen, from a window that ends before the
# > query is learned: the share of pairs of queries put in the right order, and by what factor the time is
# > off. The same on a task on which nothing was fitted.
# >
# > **Control.** The loss alone, a query's position alone, and a mean that looks at nothing. And times
# > shuffled within each run: a forecaster that does as well on those has learned nothing.
#
# Sources: papers A, B and C, [Baherwani et al.](../book/references.md#baherwani2026),
# [Billa](../book/references.md#billa2026) and [Rofin et al.](../book/references.md#rofin2026). The runs
# are those of the [three lenses](19_three_lenses.ipynb), on two more difficulties of the linear map.

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
conditions = None  # a list of conditions of the experiment lenses (["linear map"])
steps = None  # training steps (1000)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.experiments import forecast_evidence
from emergence_lib.experiments.lenses import LENSES
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
# The [three lenses](19_three_lenses.ipynb) showed which measure moves before which, looking back. Looking
# ahead is harder: at some step of a run, with what is seen so far, when will each query that is still at
# a guess be learned?
#
# A query has twelve numbers from the lenses (levels and changes of attention, rank and gradient up to the
# end of the window) and three from the loss. The forecaster is a censored regression: the logarithm of
# the waiting time is a weighted sum, and a query that was never learned counts as "at least this long".
# Queries of one run resemble each other, so a run is either fitted on or tested on, never both, and the
# strength of the penalty is chosen inside the fitted part alone. *Pairs in the right order* is the
# [concordance](../book/glossary.md) of forecast and time.
#
# The window is half of the task's *plateau*: the median step at which a run learns its first query.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
runs = recorded_if_any(LENSES)
within = forecast_evidence.forecasts(runs.rows)
shuffled = forecast_evidence.permutations(runs.rows)
carried = forecast_evidence.transfers(runs.rows)
Markdown(
    f"Source: {runs.label}. {runs.gap}\n\n{forecast_evidence.answer(within, shuffled)}\n\n"
    f"**Carried over to another task:**\n\n{forecast_evidence.transfer_words(carried)}"
)

# %% [markdown]
# ## Live: a run that is forecast before it ends
#
# A fresh run of the linear map. The forecaster knows the recorded runs, except those with the live run's
# seed, and the live run's first half plateau.

# %%
live = sweep(LENSES, live_grid.points(), device=device)
forecast_evidence.live_table(live.iloc[0], runs.rows).style.hide(axis="index")

# %% [markdown]
# ## Recorded: which lens tells what?

# %% mystnb={"figure": {"caption": "Share of pairs of one run's queries that a forecast puts in the right order, for runs left out, at half a plateau. Pale dots are runs, diamonds means over runs with 95 % intervals. At the dashed line the forecast is a coin.", "name": "fig-forecast-sets"}, "image": {"alt": "Share of rightly ordered pairs of queries for eight sets of features, from the mean alone to all lenses with the loss, a colour for each task, dots for runs and diamonds with intervals for means."}}
plotting.named_estimates(
    forecast_evidence.set_groups(within),
    plotting.TASK_COLOURS,
    "pairs in the right order",
    guides={"a coin": 0.5},
)
plt.show()

# %% mystnb={"figure": {"caption": "The same over the length of the window, which is a quarter, half or all of a plateau, or 100, 200 or 400 steps. Bars are 95 % intervals over runs.", "name": "fig-forecast-windows"}, "image": {"alt": "Share of rightly ordered pairs over the window in steps, a panel for each task, with lines for the loss alone, the three lenses, and both together, and a dashed line at one half."}}
plotting.order_by_window(within, plotting.FORECAST_COLOURS)
plt.show()

# %% [markdown]
# The order is one thing, the clock another. *Between runs* is which of two queries of different runs comes
# first, with both runs left out; *factor off* is the median factor between forecast and time.

# %%
forecast_evidence.clock_table(within).style.hide(axis="index")

# %% [markdown]
# ## Does it carry over?
#
# Fitted on one task, tested on another. In plateaus, both tasks are seen for half of their own plateau and
# time is measured in it; that needs to be known. In steps, both are seen for as many steps.

# %% mystnb={"figure": {"caption": "Share of pairs in the right order when a forecast fitted on the task of the row is tested on the task of the column, with 95 % intervals over the tested runs. Blue is better than a coin, red worse.", "name": "fig-forecast-transfer"}, "image": {"alt": "Four grids of tasks by tasks, for the loss and the three lenses, in plateaus and in steps: share of rightly ordered pairs when fitted on one task and tested on another, with intervals."}}
plotting.carried_over(carried)
plt.show()

# %% [markdown]
# ## Whole runs
#
# When will half of a run's queries be learned? One number a run, so there is little to fit: all
# difficulties of the linear map together, time in their own plateaus. *Ordered* counts pairs of runs of
# one difficulty, both left out.

# %%
forecast_evidence.runs_table(runs.rows).style.hide(axis="index")

# %% [markdown]
# ## What it means
#
# An early move is not yet a forecast. Read each lens against the loss of the query itself: where the loss
# has begun to fall, everything else moves too, and a forecast from it is late news. What a lens is worth
# is what it adds, and what it still says on a task on which it was never fitted. The sentences above count
# both, and the intervals are wide: a task has a handful of runs.
#
# ## Limits
#
# - Four tasks, two of them harder and easier versions of a third; small models; a handful of runs each.
# - Levels and changes at the end of a window are simple features. A forecaster that reads the whole curve
#   may do better, and would need more runs.
# - Where a plateau is the unit, it has to be known, also on the task that is tested on. It ends with the
#   first of eight queries, so half of it is early in a linear map, before its rates are warmed up.
# - Queries that the model cannot learn at all are censored, and are rightly ordered if forecast last.
# - The penalty's three strengths, the windows and the features were fixed before the first result and not
#   tuned afterwards. Many pairs, windows and sets are looked at: of forty intervals that know nothing, one
#   lies above one half.
#
# ## Takeaways
#
# - Compare with the loss alone before crediting a lens with foresight.
# - Split by run. Queries of one run on both sides of a split make any forecaster look good.
# - Order and clock are different questions; a forecast may have one without the other.
#
# <details><summary><b>Question.</b> Why are times shuffled within runs, not over all queries?</summary>
#
# Queries of a run share its speed. Shuffled over all queries, times would lose that, so a forecaster that
# knows only which runs are slow would beat the shuffles without knowing anything about a query. Within a
# run the speed stays, and only what tells the run's queries apart can win.
#
# </details>
