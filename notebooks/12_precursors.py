# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Precursors: does anything warn of a capability?
#
# > **Claim.** The local learning coefficient changes together with acquisition and gives no warning
# > (B-6); the largest Hessian eigenvalue seldom moves first (B-7); the ranks of gradients show no early
# > event (B-8). Linear probes read the answer from hidden states before the model says it (B-11).
# >
# > **Evidence.** Five measures and a probe at the same checkpoints of the same runs, for the middle level
# > of every task but parity. The verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** Curves of another task and random curves in the place of each measure; every definition
# > of an event swept; probes on the untrained model and on shuffled answers.
#
# Source: paper B, [Billa](../book/references.md#billa2026), which measures all five on its smallest model.
# The runs are those of [the page on collapse](10_collapse.ipynb), shorter and at fewer checkpoints.

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
steps = None  # training steps (300)
levels = None  # task-levels measured, for example ["COPY 1", "MOD 2"] (COPY 1)
draws = None  # Langevin steps averaged for the LLC, in each of two walks (10)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import precursor_events as events
from emergence_lib.experiments.precursors import PRECURSORS
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "steps": steps, "levels": levels, "draws": draws}
require_device(device)
live_grid = PRECURSORS.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# A capability appears in behaviour at some step. Is there something in the model that moves earlier? The
# paper's candidates, all measured here on the sequences of one task-level at a time:
#
# - **RankMe**: in how many directions the hidden states of the last layer point;
# - **the rank of the gradients** of single sequences (Fisher), and of their **covariance**;
# - **the largest Hessian eigenvalue**: how sharply the loss curves in its steepest direction;
# - **the local learning coefficient (LLC)**: how fast the volume of parameters with nearly the same loss
#   shrinks around the present ones. It is [sampled by random walks](../book/references.md#lau2023), and
#   means something only near a minimum: where a walk finds lower losses than it started from, the value
#   is left out, and so are the checkpoints of the warm-up, when the loss falls at every step.
#
# Whether a curve *leads* depends on what counts as its event. Here: it falls by a tenth of its peak or
# more, and its floor comes before the checkpoint of acquisition. Hessian and LLC are turned over first,
# because they rise. The same rule for all five, and its variants further down.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown("\n\n".join(evidence(claim) for claim in ("B-6", "B-7", "B-8", "B-11")))

# %% [markdown]
# ## Live: measure it yourself
#
# A short run on all tasks, measured on one that is learned early.

# %%
live = sweep(PRECURSORS, live_grid.points(), device=device)
table = events.lead_table(live)
table[["level", "measure", "outcome", "acquired", "depth"]].style.hide(axis="index").format(
    precision=2, na_rep="no"
)

# %% mystnb={"figure": {"caption": "Live run of the quick profile: accuracy and the five measures of one task-level. Dashed: acquisition, where it was seen.", "name": "fig-live-precursors"}, "image": {"alt": "Accuracy and the five measures over the training steps of the live run, stacked on one axis, for the task-level that was measured."}}
plotting.measure_panels(*events.panels(live, live_grid.levels))
plt.show()

# %% [markdown]
# ## Recorded: five measures over one run

# %%
runs = recorded_if_any(PRECURSORS)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "The first recorded run: accuracy and five measures of four task-levels. Dashed: acquisition. LLC values from which the walk found lower losses are left out; those of the warm-up, up to step 50, are drawn but do not count.", "name": "fig-precursors"}, "image": {"alt": "Accuracy, RankMe, two gradient ranks, the largest Hessian eigenvalue and the local learning coefficient over training steps, a column a task-level, with the step of acquisition dashed."}}
plotting.measure_panels(*events.panels(runs.rows, ("COPY 2", "SORT 2", "MOD 2", "MUL 2")))
plt.show()

# %% [markdown]
# ### Who moves first?

# %% mystnb={"figure": {"caption": "Step of acquisition divided by the step of each measure's event. A coloured dot is a run and task-level in which both were seen; black: median over runs, with its bootstrap interval.", "name": "fig-leads"}, "image": {"alt": "Dots of the ratio between the steps of acquisition and event for each of five measures on a log axis, with the median and its interval in black and a dashed line at one."}}
plotting.lead_dots(events.lead_table(runs.rows), events.FIVE)
plt.show()

# %% mystnb={"figure": {"caption": "Share of runs in which each measure leads, by task-level in the order in which they are acquired, with exact 95 % intervals.", "name": "fig-precursor-rates"}, "image": {"alt": "Share of runs in which each of five measures leads acquisition, task-levels from easy to hard, with exact confidence intervals."}}
plotting.rates_by_difficulty(events.rates_by_level(runs.rows), events.FIVE)
plt.show()

# %% [markdown]
# ### How much hangs on the definition?

# %% mystnb={"figure": {"caption": "Share of acquired task-levels in which each measure leads, by what counts as its event (onset of the fall, floor, half-way recovery; for Hessian and LLC of the rise) and by how deep the fall has to be.", "name": "fig-precursor-definitions"}, "image": {"alt": "Heat map of the share of cases in which each of five measures leads acquisition, under three events and four least depths."}}
plotting.definition_map(events.sweep_table(runs.rows), events.FIVE)
plt.show()

# %% [markdown]
# ## The control: what an early transient gives for free
#
# Whatever happens in the first hundred steps comes before whatever is acquired in the thousandth. Three
# kinds of curve that know nothing of the task tell how much of a rate is that: the same measure on another
# task-level of the run, the measure's own moves in a random order, and a random walk of the same size.

# %% mystnb={"figure": {"caption": "Share of acquired task-levels in which each measure leads (rings), beside the rates of curves that have nothing to do with the task-level.", "name": "fig-precursor-chance"}, "image": {"alt": "Measured lead rates of five measures as rings beside the rates of swapped, shuffled and random-walk curves."}}
plotting.against_chance(events.chance_table(runs.rows), events.FIVE)
plt.show()

# %% [markdown]
# ## Do probes know before the model says it?
#
# A ridge regression reads the last token of the answer from the hidden state of the last layer that
# predicts it; the model's own arg-max there is the behaviour to compare with. Beside it the same
# probe on shuffled answers, and its accuracy at step 0: what an untrained model lets it read is not
# something that training put there.

# %% mystnb={"figure": {"caption": "Accuracy of the last answer token, read by a probe and said by the model: medians and range over runs. Dashed: share of the most frequent answer.", "name": "fig-probes"}, "image": {"alt": "Panels, one a task-level, of the accuracy of a probe, of the model and of a probe on shuffled answers over training steps, with chance dashed."}}
plotting.probe_panels(*events.probe_curves(runs.rows))
plt.show()

# %%
events.probe_table(runs.rows).groupby("level", sort=False)[
    ["read", "said", "acquired", "untrained"]
].median().reset_index().style.hide(axis="index").format(precision=2, na_rep="no")

# %% [markdown]
# ## What it means
#
# An untrained model already lets a probe copy, reverse, sort and compare: its attention averages over the
# prompt, and the average keeps what is needed. There a probe shows what the prompt says, not what the
# model knows. What is left to test are the tasks that have to be computed.
#
# Read the rates against the control, not against zero. A measure that leads as often as another task's
# curve would says that the model is early in its training, not that this capability is coming. A measure
# that leads under one definition of its event and lags under another has no event to speak of.
#
# ## Limits
#
# - Seven of 24 task-levels, and a quarter of the checkpoints that the runs of the page on collapse have.
#   Parity is left out because no level of it is acquired there.
# - The walks of the LLC are short: they do not fill the valley, and the value is a lower bound that can be
#   compared between checkpoints but not with the paper's. How the paper samples is not known to us.
# - That the warm-up does not count for the LLC was decided after seeing three runs, in half of whose
#   task-levels it has its peak there. The verdict gives both rates.
# - Gradients and Hessian are taken on 32 sequences. The rank of the gradients cannot exceed 32.
# - The last answer token is one of several questions a probe can be asked, and the easiest for a sum or a
#   product, whose last digit needs no carry.
# - A probe is fitted on at most 400 sequences. The modular task has no more than 209 different ones beside
#   the held-out, too few for a digit that depends on both operands: there the model itself, which
#   saw them all, reads its states better than the probe does.
#
# ## Takeaways
#
# - Say what an event is before counting who comes first, and show the other definitions.
# - Give every early signal the chance to precede the wrong thing; that is the rate to beat.
#
# <details><summary><b>Question.</b> Why is the LLC of an untrained model negative?</summary>
#
# The estimate asks how much higher the loss is around the present parameters than at them. An untrained
# model lies on a slope: a walk that follows the gradient finds lower losses at once. The number is then a
# rate of descent and no volume.
#
# </details>
