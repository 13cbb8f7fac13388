# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Emergence points: the same model, another seed, another time
#
# > **Claim.** When a language model acquires a capability is random: seeds of one size get there at
# > widely different times, or not at all. Larger models get there earlier on average. The
# > jump is abrupt in the probability of the answer too, and comes with attention that can be
# > read.
# >
# > **Evidence.** A suite of small GPT-NeoX models trained here, three sizes and several seeds, measured
# > at every checkpoint on four capabilities. The verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** For each capability, prompts of the same form without an answer; for the randomness,
# > the spread of the loss over the same seeds; for the heads, the heads of *other* seeds.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), Pythia section. The paper
# measures the real Pythia. The same call does that too (see the end of the page); what is shown here
# are the small models, and the ledger says so.

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
sizes = None  # sizes of the pocket suite to train, for example ["98k", "442k"] (98k)
steps = None  # training steps, at least one for each of 35 checkpoints (715)
n_prompts = None  # prompts of each capability (64)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import pythia_evidence as pythia
from emergence_lib.experiments.pocket_suite import HEAD_MEASURES, prompt_examples
from emergence_lib.experiments.pythia import PAPER_REPETITION, PYTHIA
from emergence_lib.experiments.pythia_evidence import by_size
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded
from emergence_lib.sweep import sweep
from emergence_lib.tasks.prompts import CAPABILITIES

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "sizes": sizes, "steps": steps, "n_prompts": n_prompts}
require_device(device)
live_grid = PYTHIA.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size

# %% [markdown]
# ## The question
#
# Train one architecture ten times and change only the seed. The loss curves are hardly told apart. Ask
# each checkpoint to continue `0 7 3 1 2 0 2 3 ⏎ 0 7 3 1 2 0 2`, and one run answers ` 3` early, another
# late, a third never. Emergence plots over *sizes* mix this with the effect of size: with one seed a
# size, a lucky small model and an unlucky large one make a jump, or hide one.
#
# - How far apart are seeds of one size, compared with how far apart their losses are?
# - Do larger models get there earlier, once runs that never do are counted as what they are?
# - Is the jump in the model, or only in the criterion "the greedy token is right"?
# - What does attention do at that time?
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("A-1", "A-2", "A-3", "A-4"))

# %% [markdown]
# ## Four capabilities
#
# Each is asked in many prompts with a one-token answer, drawn anew from a seed, none of which occurs in
# the training text. Beside them stand as many *controls* of the same form that nothing answers.

# %% tags=["hide-input"]
prompt_examples().style.hide(axis="index")

# %% [markdown]
# ## Live: train one now
#
# The smallest size for a quarter of its training. `profile = "cpu"` trains the suite as recorded.

# %%
live = sweep(PYTHIA, live_grid.points(), device=device)
Markdown("\n\n".join(f"**{row['size']}** writes: {row['sample']}" for _, row in live.iterrows()))

# %% mystnb={"figure": {"caption": "Live runs: probability of the answer over training, mean over the prompts of each capability. Compare with the recorded runs below, which train four times as long.", "name": "fig-live-capabilities"}, "image": {"alt": "Mean probability of the answer against training step for the live run, one panel for each of the four capabilities."}}
titles = {name: name.replace("_", " ") for name in CAPABILITIES}
titles["ioi"] = "indirect object"
plotting.over_checkpoints(
    by_size(live, {title: f"p_{name}" for name, title in titles.items()}),
    plotting.MODEL_SIZE_COLOURS,
    "p(target)",
    first=float(live.eval_steps.iloc[0][1]),
)
plt.show()

# %% [markdown]
# ## Recorded: the suite
#
# Three sizes of GPT-NeoX (98k, 442k and 1.2m parameters beside the embeddings), Pythia's recipe scaled
# down, 5.9 million tokens of code, prose and generated stories. First: are these models worth having?

# %%
runs = recorded(PYTHIA)
rows = runs.rows
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Held-out loss of the recorded runs by size. Thin lines are seeds, bold lines medians, bands the 25\u201375 % range: seeds of one size can hardly be told apart.", "name": "fig-suite-loss"}, "image": {"alt": "Held-out loss against training step for the recorded runs, a colour for each model size, with narrow bands over the seeds; larger models end lower."}}
losses = {"all tokens": "loss", "code": "loss_code", "prose": "loss_prose", "stories": "loss_story"}
plotting.over_checkpoints(
    by_size(rows, losses), plotting.MODEL_SIZE_COLOURS, "held-out loss (nats)", first=20
)
plt.show()

# %% tags=["hide-input"]
firsts = rows.drop_duplicates("size")
Markdown("\n\n".join(f"**{row['size']}** writes: {row['sample']}" for _, row in firsts.iterrows()))

# %% [markdown]
# ### When each seed gets there
#
# An emergence point is the midpoint between the last checkpoint that fails and the first that passes:
# the share of prompts answered right by the greedy token is at least half-way from the controls' share to
# one. Crosses never got there.

# %% mystnb={"figure": {"caption": "Emergence of each capability, one dot a seed, as a share of training. Bars are medians, crosses runs that never get there. Grey: the paper's means for Pythia (string repetition, one prompt, runs that fail counted as the last step).", "name": "fig-emergence"}, "image": {"alt": "Dots for the emergence step of each seed in columns by model size, a panel for each capability, with crosses for runs that never acquire it and grey diamonds for the paper's Pythia means."}}
table = pythia.emergence_table(rows, "many")
plotting.emergence_steps(table, titles, PAPER_REPETITION)
plt.show()

# %% [markdown]
# The solve rates with exact intervals, and the paper's bisection against the full scan. A *reversal* is
# a checkpoint that fails after one that passed; bisection assumes there are none.

# %%
pythia.solve_table(rows).style.hide(axis="index").format(precision=2, na_rep="–")

# %% mystnb={"figure": {"caption": "Share of runs of which no checkpoint has passed on string repetition yet, Kaplan\u2013Meier with 95 % bands, by size. Ticks are runs that end without it.", "name": "fig-survival"}, "image": {"alt": "Kaplan\u2013Meier curves over training steps of the share of runs without string repetition, one for each model size."}}
repetition = table[table.capability == "string_repetition"]
plotting.survival_curves(
    {size: pythia.events(lines) for size, lines in repetition.groupby("size", sort=False)},
    plotting.MODEL_SIZE_COLOURS,
    "share of runs not there yet",
)
plt.show()

# %% [markdown]
# ### Is the jump in the probability too?
#
# A greedy token flips at a point even if the model moves smoothly. So look at the probability of the
# answer itself, run by run, and at the controls.

# %% mystnb={"figure": {"caption": "Probability of the answer over training, mean over 64 prompts; thin lines are seeds.", "name": "fig-probability"}, "image": {"alt": "Mean probability of the answer against training step, a panel for each capability and a colour for each size, every seed as a thin line."}}
plotting.over_checkpoints(
    by_size(rows, {title: f"p_{name}" for name, title in titles.items()}),
    plotting.MODEL_SIZE_COLOURS,
    "p(target)",
    first=20,
)
plt.show()

# %% mystnb={"figure": {"caption": "The same for the control prompts, whose target nothing in the prompt tells.", "name": "fig-control"}, "image": {"alt": "Mean probability of the target of control prompts against training step, staying low in every panel where the capability is not a guess between two names."}}
plotting.over_checkpoints(
    by_size(rows, {title: f"control_p_{name}" for name, title in titles.items()}),
    plotting.MODEL_SIZE_COLOURS,
    "p(target) of controls",
    first=20,
)
plt.show()

# %% [markdown]
# ### Heads
#
# The best head of every model on repeated random tokens: how much of its attention lies on the previous
# token, on the token after the earlier occurrence (induction) and on the earlier occurrence itself. The
# in-context-learning score stands beside: how much lower the loss is late in the context than early.

# %% mystnb={"figure": {"caption": "Scores of each model's best head on random tokens repeated once. Attention spread evenly would score 0.014.", "name": "fig-heads"}, "image": {"alt": "Three panels over training steps: the best previous-token, induction and duplicate-token score of any head, a colour for each model size; only the first rises."}}
scores = {name.replace("_", " "): name for name in HEAD_MEASURES}
plotting.over_checkpoints(
    by_size(rows, scores), plotting.MODEL_SIZE_COLOURS, "score of the best head", first=20
)
plt.show()

# %% mystnb={"figure": {"caption": "In-context-learning score: held-out loss at position 120 minus loss at position 10. Negative if context helps.", "name": "fig-icl"}, "image": {"alt": "In-context-learning score in nats against training step, a colour for each model size with every seed as a thin line, dipping below zero."}}
plotting.over_checkpoints(
    by_size(rows, {"in-context learning": "icl"}), plotting.MODEL_SIZE_COLOURS, "nats", first=20
)
plt.show()

# %% [markdown]
# ## The real Pythia
#
# The same experiment bisects the public checkpoints: five sizes, ten seeds, at most nine checkpoints a
# capability. `emergence status pythia --profile paper` prints how much that downloads and how long it
# takes before anything is fetched; `emergence sweep pythia --profile paper` does it, and this page and
# the ledger then show those numbers. Until then no verdict here is about the real Pythia.

# %% [markdown]
# ## What it means
#
# In this suite the capabilities fall into three kinds. Every run passes on repeating a string of digits, in the
# first half of training, and some lose it again. Continuing a numbered pattern comes to some seeds of a size
# and not to others within the 2,860 steps; most of those that do not pass are still climbing, so this is a
# spread in time that the end of the run cuts off. Repeating arbitrary words and telling the two names of the
# indirect-object prompts apart come to none of them in six million tokens.
#
# Where something emerges, the probability of the answer climbs over a good part of the training rather than
# from one checkpoint to the next, and the criterion flips back and forth on the way: see the reversals.
# Bisection, which assumes there are none, then lands on one of several crossings. On small models with few
# tokens the staircase of the linear map is not what one sees.
#
# And the heads do not tell the story that the names of the capabilities suggest. All runs grow previous-token
# heads early, if weak ones; the induction score on random tokens hardly leaves its chance level of 0.014, even in
# runs that solve most of the prompts.
# [The story of one emergence](05_one_emergence.ipynb) looks at what they do instead.
#
# ## Limits
#
# - Small models, few tokens, a text made for the purpose: repeated strings and lists are common in it. What
#   holds here need not hold for Pythia, and no verdict says so.
# - A seed changes weights and the order of the data, not the text, the prompts or the held-out windows.
# - The criterion for many prompts, half-way above the controls, is ours. With the paper's single prompt the
#   greedy token is right by accident early and often: compare the column *single* with *solved*.
# - Rotary positions turn whole heads here, a quarter of each in Pythia (`models.pocket` says why), and output
#   projections start as large as other matrices.
# - Solved shares and p(target) come from 64 prompts: another 64 move them by several hundredths, and with them
#   the step of a slow emergence.
# - Only the smallest size has many seeds so far; the status line above the figures says how many.
# - Mix and frequency of repeats were chosen after short trials in which nothing emerged; the recorded runs are
#   the first with the final text.
#
# ## Takeaways
#
# - Before reading luck into one prompt, ask many, with controls of the same form.
# - Count runs that never get there as censored, and show them.
# - The loss of a run says little about when it acquires what.
#
# <details><summary><b>Question.</b> Why is "the greedy token of one prompt is right" such a noisy criterion for
# a model that has not got the capability?</summary>
#
# The prompt has one of ten digits, or one of two names, as its answer. A model that knows only that a digit
# comes next is right on one prompt in ten, with whichever digit it happens to prefer at that checkpoint; and
# with 149 checkpoints it is right at some of them almost surely.
#
# </details>
