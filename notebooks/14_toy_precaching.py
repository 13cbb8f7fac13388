# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Useless features in two toy tasks
#
# > **Claim.** The gradient splits exactly into a direct, a pre-cached and a shared part (C-1). Features
# > that are useless for the next token do not emerge when pre-caching and sharing are both taken away
# > (C-2). Conditioned Majority cannot be learned well without pre-caching (C-3). Sharing alone can carry a
# > feature to positions where it is useless (C-4).
# >
# > **Evidence.** Two tasks, each trained in four ways; linear probes of the feature at every layer and
# > position; accuracy of the first output; the influence of each part of the gradient, summed over
# > training. The verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** The same probes on the model before training, whose uniform attention already makes counts
# > readable; the accuracy of the best constant guess; the split by its definition, in float64.
#
# Source: paper C, [Rofin et al.](../book/references.md#rofin2026), sections on the decomposition, the
# ablations and the toy tasks.

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
seeds = None  # live runs of each way of training (1)
tasks = None  # for example ["majority", "conditioned_majority"] (["majority"])
d_model = None  # width of the model (32)
steps = None  # training steps (250)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.analysis.gradients import decompose
from emergence_lib.analysis.stop_gradient import identity_errors
from emergence_lib.claims import evidence
from emergence_lib.experiments import toy_precaching_evidence as found
from emergence_lib.experiments.toy_precaching import TOY_PRECACHING
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep
from emergence_lib.training import train
from emergence_lib.training.train import step_generator

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "tasks": tasks, "d_model": d_model, "steps": steps}
require_device(device)
live_grid = TOY_PRECACHING.block(profile, **{k: v for k, v in given.items() if v is not None})
cut = found.n_inputs("majority")
task_colours = {
    "Majority": plotting.OKABE_ITO["blue"],
    "Conditioned Majority": plotting.OKABE_ITO["vermillion"],
}
plotting.use_style()

# %% [markdown]
# ## The question
#
# A sequence is a start token, ten random symbols out of three, and ten outputs. In **Majority** an output
# is one of the most frequent symbols so far; in **Conditioned Majority** only symbols that follow a 0
# count. While the input lasts, the next token is a coin toss: at those positions no feature of the past
# helps to predict it. If the model computes one there all the same, training must have had another reason.
#
# Take the residual vector $r$ after block $k$ at position $i$. A gradient that changes it comes
#
# - **directly**, from the prediction made at $i$ itself;
# - **pre-cached**, from predictions at later positions, which attend to $i$;
# - **shared**, past $r$: the same weights work at other positions, where the feature may be useful.
#
# At a position where a feature is useless, the direct part has nothing to build. The other two can be
# switched off. *Myopic* training lets no gradient cross positions: no pre-caching. An *untied* model has
# two sets of weights, one for the positions of the input and one for those that predict outputs: no
# sharing between them. The forward pass of myopic training is the ordinary one, so this removes a reason
# to learn, not an ability.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown("\n\n".join(evidence(claim) for claim in ("C-1", "C-2", "C-3", "C-4")))

# %% [markdown]
# ## Live: train it yourself
#
# Majority in four ways with a small model and one seed. Training is short, so the ways without
# pre-caching may not have learned to count yet; the probes tell them apart all the same.

# %%
live = sweep(TOY_PRECACHING, live_grid.points(), device=device)
found.summary(live).style.hide(axis="index")

# %% mystnb={"figure": {"caption": "Live runs of the quick profile: how well a ridge probe reads the feature at each position, in the trained models and before training. Left of the dashed line the feature is useless for the next token.", "name": "fig-live-toy-probes"}, "image": {"alt": "Correlation of the probe against position in the live runs, one line a way of training and a dotted line for the untrained model, one panel a layer."}}
plotting.probes_by_position(found.by_task(live, found.probe_curves), cut)
plt.show()

# %% [markdown]
# ## The split, checked on a live model
#
# The definition stops the gradient at the site and subtracts, which takes two forward and four backward
# passes for every site. The library needs two backward passes for all sites together: an ordinary one for
# $\partial L / \partial r$, and one through the myopic graph for $\partial L_i / \partial r$, since the
# prediction at $i$ depends on $r$ only through its own column. The cell below trains a small model for a
# moment and compares the two.

# %% tags=["hide-cell"]
cell = live_grid.cell(live_grid.tasks[0], "plain")
model = train(cell.majority(), cell.model_config(), cell.train_config(seed=0)).model.double()
batch = cell.majority().sample(8, step_generator(0, "notebook"))
sites = [(k, i) for k in range(cell.n_layers + 1) for i in (1, 5, cut, 15)]
parts = decompose(model, batch.tokens, batch.loss_mask, sites)
for (k, i), part in parts.items():
    norms = [sum(g.pow(2).sum() for g in p.values()).sqrt() for p in vars(part).values()]
    print(f"layer {k}, position {i:2}: " + "  ".join(f"{n:.4f}" for n in norms))
of_sum, of_scheme = identity_errors(model, batch.tokens, batch.loss_mask, sites)
print(f"parts by definition against the gradient {of_sum:.1e}, two passes {of_scheme:.1e}")

# %% [markdown]
# The three numbers are the norms of the direct, pre-cached and shared part. In the last layer nothing is
# pre-cached: no later position reads it.
#
# ## Recorded: which way of training learns the task
#
# Accuracy is that of the *first* output. Later ones can be copied from it in Majority, so a mean over all
# outputs looks well even where nothing is counted.

# %%
runs = recorded_if_any(TOY_PRECACHING)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Accuracy of the first output after training in four ways: mean with 95 % interval, runs as pale dots. An arg-max is right when it is one of the most frequent symbols. Dashed: the best constant guess of each task.", "name": "fig-toy-accuracy"}, "image": {"alt": "Accuracy of the first output for plain training, without pre-caching, without sharing and with neither, for Majority and Conditioned Majority, beside the best constant guess."}}
plotting.named_estimates(
    found.by_training(runs.rows, "accuracy"),
    task_colours,
    "accuracy of the first output",
    guides=found.guesses(runs.rows),
)
plt.show()

# %% [markdown]
# ## Recorded: is the useless feature there?
#
# In Majority the probe asks, for each symbol, whether it is among the most frequent so far; in Conditioned
# Majority whether the token before is a 0. The untrained model is the line to beat.

# %% mystnb={"figure": {"caption": "Probes of the feature by position and layer, mean over seeds with their range. Left of the dashed line the feature is useless for the next token. Dotted: the model before training.", "name": "fig-toy-probes"}, "image": {"alt": "Held-out correlation of ridge probes against position for four ways of training and the untrained model, a row of panels a task and a column a layer."}}
plotting.probes_by_position(found.by_task(runs.rows, found.probe_curves), cut)
plt.show()

# %% mystnb={"figure": {"caption": "What training adds: correlation of the probe minus that of the same model before training, at the best layer, mean over the useless positions 2 to 9. Mean with 95 % interval, runs as pale dots.", "name": "fig-toy-gains"}, "image": {"alt": "Gain of the probe over the untrained model at useless positions for four ways of training, Majority and Conditioned Majority, with a dashed line at no gain."}}
plotting.named_estimates(
    found.by_training(runs.rows, "gain"),
    task_colours,
    "gain of the probe's r over the untrained model",
    guides={"as untrained": 0.0},
)
plt.show()

# %%
found.summary(runs.rows).style.hide(axis="index")

# %% [markdown]
# ## Recorded: which part of the gradient built it
#
# Let $\theta^*$ be the weights at the end of training and $w$ the probe there. The mismatch
# $R = \frac12 (\langle w, r_\theta\rangle - \langle w, r_{\theta^*}\rangle)^2$ is what is still to be built.
# Each part of each training step takes some of it away, or adds to it; summed over all steps this is the
# part's integrated influence. It takes two trainings, the second of which must repeat the first bit for
# bit; a run in which it did not would have stopped with an error.

# %% mystnb={"figure": {"caption": "Integrated influence of each part of Adam's steps in plain training, as a share of the mismatch at the start; positive builds the feature. Dots are runs, lines their means. Pre-cached is exactly 0 in the last layer.", "name": "fig-toy-influence"}, "image": {"alt": "Integrated influence of the direct, pre-cached and shared part at four positions of each layer, a row of panels a task; left of the dashed line the feature is useless for the next token."}}
plotting.influence_by_position(found.by_task(runs.rows, found.influence_table), cut)
plt.show()

# %% tags=["hide-input"]
Markdown(found.influence_sentence(runs.rows))

# %% [markdown]
# ## The control
#
# A model before training reads as a feature detector too: attention that averages over all positions puts
# the counts into the residual stream, and "is among the most frequent" is partly linear in counts. A
# probe's correlation alone would credit training with what random weights do. So gains are what is judged,
# and a negative gain is possible: training can take away what was readable by accident.
#
# A second trap is scale. The probe's penalty is fixed, so a weak signal is read worse than a strong one,
# and weights that merely grow raise $r$. The last column of the table above has the gain after every
# residual vector is scaled to unit root mean square, which is how the next norm sees it. Where it is near
# 0 while the raw gain is not, training made the feature louder rather than new.
#
# ## What it means
#
# Usefulness for the next token is not what decides whether a feature is there. In plain training two
# other reasons to compute it are at work, and the ablations take them away one at a time.
#
# In Majority there is little left to build at the input positions: the untrained model reads the feature
# nearly as well as the trained one, so the question becomes what *keeps* it readable. Both reasons do.
# Models that train with pre-caching keep it, whether they share weights or not. Sharing alone keeps more of
# it than neither mechanism does, as the paper reports, but no way of training adds much to what random
# weights had.
#
# In Conditioned Majority the feature serves only as a step on the way: no position predicts from it, later
# ones count with it. Here plain training builds the feature, and it does so as well without shared weights.
# Without pre-caching less of it is built; at unit scale less is readable than before training, and the task
# is learned only in part.
#
# The integrated influences answer another question. They ask what flowed through *one* residual vector;
# the shared part holds all the rest, also what is pre-cached at other positions into the same weights. So
# a small pre-cached part at a site does not contradict an ablation that takes pre-caching away everywhere.
# They are first-order, and add up to the mismatch only as far as steps are small: where the sentence above
# has a sum far from 1, single parts say little.
#
# ## Limits
#
# - The recorded runs are smaller than the paper's: 64 dimensions for 128, batches of 64 for 256 and
#   600 steps for 3,000. Adam trains Majority, at twice the paper's rate; Conditioned Majority would stay
#   on its plateau for longer than that, so Muon trains its mixers. The paper's sizes and its Adam are the
#   `paper` profile.
# - Muon takes full steps even where the gradient is noise. With neither mechanism the weights of the input
#   positions follow coin tosses and wander, which can make single positions more readable by accident.
# - Influences are followed in two seeds and at four positions of each task. Muon's steps do not split into
#   parts, so those of Conditioned Majority are from runs with Adam, larger initial weights and 800 steps.
# - A probe's gain is read at the best layer, which favours neither side of a comparison but is not a
#   single place in the model.
# - An untied model has twice the weights. It is given as much data as the others.
#
# ## Takeaways
#
# - The gradient of one loss at one residual vector has three sources, and they can be told apart exactly at
#   the price of two backward passes.
# - Before asking why a feature is there, ask whether an untrained model has it.
# - Report the accuracy of the first prediction that needs the computation, not a mean over its copies.
#
# <details><summary><b>Question.</b> Why is nothing pre-cached in the last layer, and is that also true of
# the embeddings?</summary>
#
# Later positions read a position through its keys and values, and those of block $k + 1$ are made from the
# residual stream after block $k$. After the last block there is none left that could read. The embeddings
# ($k = 0$) are read by every block, so most can be pre-cached there; but what an embedding says about its
# own position does not depend on any other token, so a feature of the past cannot be built there at all.
#
# </details>
