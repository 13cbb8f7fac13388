# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pre-pre-training: does structure carry over?
#
# > **Claim.** Training first on Dyck languages or neural cellular automata can speed up the acquisition of
# > in-context capabilities.
# >
# > **Evidence.** The step at which a small model acquires induction, after training on one of these sources and
# > without it, over many seeds, as waiting times with the runs that never got there counted. The verdict,
# > computed from the recorded runs, follows below.
# >
# > **Control.** As many steps on tokens without any structure in their context, and the same times with the
# > steps of the source counted.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), section on pre-pre-training. Of its
# set-up only the claim is known to us; the sources follow [Hu et al.](../book/references.md#hu2025) and
# [Lee et al.](../book/references.md#lee2026), made small.

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
seeds = None  # live runs of each source (1)
sources = None  # of none, dyck, neural_ca, unigram (["none", "dyck", "unigram"])
source_steps = None  # training steps on the source (300)
n_tokens = None  # of the induction task (24)
steps = None  # training steps on induction (600)

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import pre_pretraining_evidence as found
from emergence_lib.experiments.pre_pretraining import PRE_PRETRAINING
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "sources": sources, "source_steps": source_steps}
given |= {"n_tokens": n_tokens, "steps": steps}
require_device(device)
live_grid = PRE_PRETRAINING.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size

# %% [markdown]
# ## The question
#
# To continue a repeated text a model needs a head that finds where the current token stood before and copies
# what followed. Nothing in the data rewards half of that, so the loss lies on a plateau until it is found.
#
# Brackets have to be matched with earlier brackets; a neural automaton's next grid follows from the one before
# by a rule that the context shows. Both reward looking back by content. If what they teach about looking back is
# kept, induction should come sooner, although the two tasks share no token.
#
# - **Dyck**: brackets of 8 kinds, each balanced for itself.
# - **Neural automata**: grids that a random network rewrites, a new network for every sequence.
# - **Unigram tokens**: independent draws from Zipf's law. There is nothing to look back for.
# - **No source**: induction from the start.
#
# Between the tasks, blocks and final norm are kept, embeddings and unembedding drawn anew. Positions are
# rotary, so none has to be moved. Induction here has a period that changes with the sequence, so that no fixed
# distance solves it.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("A-16"))

# %% [markdown]
# ## Live: train it yourself

# %%
live = sweep(PRE_PRETRAINING, live_grid.points(), device=device)
found.source_table(live).style.hide(axis="index").format(precision=2, na_rep="–")

# %% mystnb={"figure": {"caption": "Live runs of the quick profile: loss on induction against its own training step, after each source.", "name": "fig-live-pre-pretraining"}, "image": {"alt": "Held-out loss on the induction task against downstream training step for live runs with no source, after Dyck and after unigram tokens, between a guess and the floor."}}
induction = live_grid.cell(live_grid.sources[0]).task()
guides = {"a guess": math.log(induction.n_tokens), "floor": induction.floor}
plotting.loss_curves(found.curves(live), plotting.SOURCE_COLOURS, guides)
plt.show()

# %% [markdown]
# ## Recorded: how long induction takes

# %%
runs = recorded_if_any(PRE_PRETRAINING)
longest = found.longest(runs.rows)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Share of runs that have not acquired induction yet, by downstream step (Kaplan\u2013Meier with 95 % bands): accuracy above one half in three evaluations in a row.", "name": "fig-pre-pretraining"}, "image": {"alt": "Share of runs still without induction against downstream training step, for no source, Dyck, neural automata and unigram tokens first, with 95 percent bands."}}
plotting.survival_curves(
    found.named_events(longest), plotting.SOURCE_COLOURS, "share of runs without induction"
)
plt.show()

# %%
found.source_table(runs.rows).style.hide(axis="index").format(precision=2, na_rep="–")

# %% [markdown]
# *Source loss* beside *source floor* shows how much of the source itself was learned: whether there was anything
# to carry over. The automata's floor is that of a predictor that knows the network, which has to be found. The
# figures show the runs with most steps on a source.

# %% mystnb={"figure": {"caption": "Loss on induction against its own training step, after each source. Thin lines are runs, thick ones medians.", "name": "fig-pre-pretraining-loss"}, "image": {"alt": "Held-out loss on the induction task against downstream training step after each source, single runs and medians, between a guess and the floor."}}
plotting.loss_curves(found.curves(longest), plotting.SOURCE_COLOURS, guides)
plt.show()

# %% [markdown]
# ## The control: other steps, and all steps
#
# A model that has been trained on anything differs from a fresh one: its weights have grown, its norms have
# found a scale. Tokens without structure give that and nothing else. A source that helps no more than they do
# has taught nothing about looking back.
#
# And a source costs steps. Counted with them, the comparison is one of equal compute:

# %% mystnb={"figure": {"caption": "The same by all steps, those on the source included.", "name": "fig-pre-pretraining-all-steps"}, "image": {"alt": "Share of runs still without induction against all training steps including those on the source, for no source, Dyck, neural automata and unigram tokens first."}}
plotting.survival_curves(
    found.named_events(longest, all_steps=True),
    plotting.SOURCE_COLOURS,
    "share of runs without induction",
)
plt.show()

# %% [markdown]
# ## What it means
#
# Four outcomes are different findings. Sooner than without a source but not than the control: the network is
# warmed up. Sooner than both: the structure carried over. Sooner in downstream steps but not in all steps: it
# carried over and did not pay, unless the source's model is used for many tasks. Later than without a source
# but sooner than after the control: blocks that have been trained on something else are a worse start than
# fresh ones, and structure in the source makes them less bad.
#
# The last would not contradict the literature. Its gains are on language, which needs much more than one head
# that looks back, and its downstream training is long enough to make up for a bad start. Why trained blocks
# are a worse start was not looked into. One candidate is their size: weights have grown on the source, and
# the same learning rate then turns them more slowly.
#
# ## Limits
#
# - One downstream task, made for this purpose, instead of language. The literature's gains are on language, after
#   many more steps.
# - The sources are cut down as well: few kinds of brackets, small grids, short training. How long to train on
#   a source was tried at two lengths only.
# - Both tasks use the same learning rate, and the optimizer starts anew in between.
#
# ## Takeaways
#
# - Compare with a source that has no structure, not only with none.
# - Say which steps are counted.
#
# <details><summary><b>Question.</b> Why are the embeddings drawn anew?</summary>
#
# Token 3 is a bracket in one task and an arbitrary symbol in the other. Keeping its embedding would tie the
# two by an accident of numbering. What is meant to carry over is how positions talk to each other, and that
# lies in the blocks.
#
# </details>
