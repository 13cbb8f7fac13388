# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Text: what builds grammar, and what builds a sense of place
#
# > **Claim.** Myopic training, which removes pre-caching, costs loss (C-7). Simple grammar, the part of
# > speech and the dependency label of a token, is learned mostly through the direct part of the gradient
# > (C-8). The position within a story is learned only with pre-caching (C-9).
# >
# > **Evidence.** Small language models of generated stories, plain and myopic from the same weights and
# > data; linear probes of twenty grammatical features and of the place in the story; the influence of each
# > part of the gradient on the probes' directions, summed over training. The verdicts, computed from the
# > recorded runs, follow below.
# >
# > **Control.** The same probes on the model before training. Influence by steps of plain SGD beside that
# > of Adam.
#
# Source: paper C, [Rofin et al.](../book/references.md#rofin2026), section on text. The parts of the
# gradient are explained on [the page on Othello](15_othello.ipynb).

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
seeds = None  # live pairs of a plain and a myopic run (1)
n_layers = None  # of the model (3)
d_model = None  # width of the model (64)
steps = None  # training steps (240)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import text_features_evidence as found
from emergence_lib.experiments.evidence import named_groups
from emergence_lib.experiments.text_features import TEXT_FEATURES
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "n_layers": n_layers, "d_model": d_model, "steps": steps}
require_device(device)
live_grid = TEXT_FEATURES.block(profile, **{k: v for k, v in given.items() if v is not None})
part_colours = {found.PART_WORDS[part]: c for part, c in plotting.GRADIENT_COLOURS.items()}
plotting.use_style()

# %% [markdown]
# ## The question
#
# A language model is asked for one thing, the next token. To give it, it has to know that it stands after
# a determiner; it hardly has to know that it is the 37th token of a story. If such knowledge is found in a
# model, where did it come from? The gradient at a position has three sources: the prediction made there
# (**direct**), later predictions that read this position (**pre-cached**), and everything else, through
# weights that all positions share (**shared**).
#
# Grammar serves the next token, so the direct part could teach it. The place in a story changes slowly and
# serves every later prediction a little, so one may expect it to be pre-cached.
#
# The stories are generated, and each token knows its part of speech, its role in the sentence and how far
# into the story it stands. Nothing has to be guessed by a tagger.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("C-7", "C-8", "C-9"))

# %% [markdown]
# ## Live: train it yourself
#
# A plain and a myopic run of the same model, from the same weights and data, in a short training. The
# forward pass of both is the same function; only which gradients may cross positions differs.

# %%
live = sweep(TEXT_FEATURES, live_grid.points(), device=device)
found.losses(live).style.hide(axis="index").format(precision=3)

# %% mystnb={"figure": {"caption": "Live runs of the quick profile: mean correlation of linear probes with each kind of feature on held-out text, over layers and positions 30 to 39.", "name": "fig-live-text-probes"}, "image": {"alt": "Correlation of probes with parts of speech, dependency labels and the place in the story for the live plain and myopic run and for the model before training."}}
plotting.named_estimates(
    named_groups(found.decodability(live), "training", "kind"),
    plotting.TRAINING_COLOURS,
    "correlation of the probe, held out",
    guides={"nothing": 0.0},
)
plt.show()

# %% [markdown]
# ## Recorded: what myopic training costs

# %%
runs = recorded_if_any(TEXT_FEATURES)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Held-out loss after plain and after myopic training. Mean with 95 % interval, runs as pale dots; a plain and a myopic run of one seed share weights and data.", "name": "fig-text-loss"}, "image": {"alt": "Held-out loss of plain and of myopic runs in nats, each run as a dot, with mean and 95 percent interval."}}
plotting.named_estimates(
    named_groups(found.loss_table(runs.rows), "training", "loss"),
    plotting.TRAINING_COLOURS,
    "nats a token",
    guides={},
)
plt.show()

# %% [markdown]
# ### What can be read off

# %% mystnb={"figure": {"caption": "Mean correlation of linear probes with each kind of feature, over the layers after the first block and positions 30 to 39 of held-out windows. Mean with 95 % interval, runs as pale dots. Grey: the model before training.", "name": "fig-text-probes"}, "image": {"alt": "Correlation of probes with parts of speech, dependency labels and the place in the story, for plain runs, myopic runs and untrained models, with intervals over runs."}}
plotting.named_estimates(
    named_groups(found.decodability(runs.rows), "training", "kind"),
    plotting.TRAINING_COLOURS,
    "correlation of the probe, held out",
    guides={"nothing": 0.0},
)
plt.show()

# %% [markdown]
# ### What built it

# %% mystnb={"figure": {"caption": "Integrated influence (Adam) of each part of the gradient on the probes' directions in plain training, a mean over layers, positions and the features of a kind, in variances of the read-out. Positive builds the feature.", "name": "fig-text-influence"}, "image": {"alt": "Integrated influence of the direct, pre-cached and shared part of the gradient on parts of speech, dependency labels and the place in the story, with intervals over runs and a line at zero."}}
plotting.named_estimates(
    named_groups(found.influence_table(runs.rows).replace(found.PART_WORDS), "part", "kind"),
    part_colours,
    "integrated influence (variances of the read-out)",
    guides={"builds": 0.0},
)
plt.show()

# %% [markdown]
# Feature by feature, the two parts that pass through the site itself:

# %% tags=["hide-input"]
found.by_feature(runs.rows).style.hide(axis="index").format(precision=3)

# %% [markdown]
# ## The control: another optimizer's steps
#
# Adam divides each step by the size that gradients had, which weighs rare parameters up. The same
# gradients, taken as steps of plain SGD along the same training, give influences without that. Their sizes
# are not comparable with Adam's; their signs and proportions are.

# %% mystnb={"figure": {"caption": "The same as the figure before, for steps of plain SGD with the same rate along the same training.", "name": "fig-text-influence-sgd"}, "image": {"alt": "Integrated influence by plain SGD steps of the direct, pre-cached and shared part on the three kinds of features, with intervals over runs and a line at zero."}}
plotting.named_estimates(
    named_groups(found.influence_table(runs.rows, "sgd").replace(found.PART_WORDS), "part", "kind"),
    part_colours,
    "integrated influence (variances of the read-out)",
    guides={"builds": 0.0},
)
plt.show()

# %% [markdown]
# ## What it means
#
# Three numbers are easily taken for each other. The *loss* says what pre-caching is worth for the task.
# The *probe* says what a model knows. The *influence* says which part of the gradient moved the weights
# there. A feature may be readable after myopic training and yet be pre-cached in plain training: the
# probe shows only that another source was enough.
#
# Nor does the pre-cached part stand out where it was expected: on the place in the story its sign differs
# from run to run. As with the other features, most of what moves the read-out is shared.
#
# The shared part is the largest by its definition: a site is one position of one layer, and what the other
# 63 positions teach the same weights counts as shared, their own direct parts among them. So "mostly
# direct" can only mean direct against pre-cached here. That reading is the one that the verdict calls
# partly.
#
# ## Limits
#
# - The paper's model has 4 layers of width 128 and sees 16 million tokens of TinyStories. Ours has 3 layers
#   of width 64 and sees 0.8 million of a generated language. Its grammar is simpler than English.
# - Tags and labels are ours, named after the paper's, not spaCy's. The `paper` profile takes TinyStories
#   and spaCy's labels (`tasks.tinystories`, with the extra `stories` installed); it is not recorded.
# - Influence is measured at one training step in twenty, each standing for the next ones, with Adam's
#   moments kept over the measured steps; at four positions of the ten that probes read. It is linear, and
#   with the learning rate used here single steps overshoot: the parts sum to more than the mismatch there
#   was. Signs and proportions are what to read. One of the recorded runs overshoots far more than the
#   others, which is what widens the interval of its shared part.
# - Windows may hold the end of one story and the beginning of the next, about one in five does. There the
#   place in the story can be counted from the end-of-text token.
#
# ## Takeaways
#
# - Say which of three things is meant by "learned through": the loss, the read-out or the gradient.
# - Hold the untrained model beside each probe: much of grammar is a property of the token itself.
#
# <details><summary><b>Question.</b> Can myopic training change the loss at the first position, which
# attends to itself alone?</summary>
#
# Yes, though not through that position's own gradient: the prediction made there sends the same gradient
# down the same column in both kinds of training. In plain training later predictions also send gradients
# through what they read of it, and all positions share their weights, so what those ask for changes the
# maps that the first position uses. Whether that helps or harms its loss is not said.
#
# </details>
