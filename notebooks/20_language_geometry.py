# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Language models: does the rank collapse there too?
#
# > **Claim.** Over the pretraining of Pythia the effective rank of the representations collapses and
# > recovers, as on algorithmic tasks. Common language capabilities have no precursor of their own in it;
# > a hard reasoning task shows a gap (B-13).
# >
# > **Evidence.** RankMe at every layer over the training of small language models, by domain of text and
# > by capability, at the same checkpoints as what the models can do. The verdict, computed from the
# > recorded runs, follows below.
# >
# > **Control.** Prompts that look like those of a capability and have no answer: a rank that moves in the
# > same way there says nothing about the capability. The centred rank; other definitions of the event.
#
# Source: paper B, [Billa](../book/references.md#billa2026), which follows Pythia at 160M, 410M and 2.8B.
# Here the models are those of the [pocket suite](03_pythia_emergence.ipynb), trained from scratch. The
# real Pythia goes through the same call, on a machine with a network; it is not tested here.

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
source = None  # "pocket" trains here; "hub" downloads the real Pythia ("pocket")
sizes = None  # "98k", "442k", "1.2m", or of the Hub "160m" and so on, one or a list ("98k")
steps = None  # training steps (150)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import language_geometry_evidence as found
from emergence_lib.experiments.language_geometry import LANGUAGE_GEOMETRY, scan_checkpoints
from emergence_lib.experiments.language_probe import GROUPS
from emergence_lib.models.pocket import checkpoint_steps
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.tasks.prompts import CAPABILITIES

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "source": source, "sizes": sizes, "steps": steps}
require_device(device)
live_grid = LANGUAGE_GEOMETRY.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# [On algorithmic tasks](10_collapse.ipynb) the effective rank of the hidden states falls in the first
# steps and comes back. Does a language model's, which learns thousands of things at once? And if it
# does, is there a movement that belongs to one capability and comes before it, or only one movement that
# all inputs share?
#
# RankMe is taken over the last tokens of many inputs of one kind: held-out code, prose and stories, and
# the prompts of the [four capabilities](03_pythia_emergence.ipynb). A capability counts as acquired when
# the share of prompts solved stays more than half-way from that of the control prompts to all. (A model
# that names one of the two people at random solves half of the IOI prompts, and of the controls.)
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("B-13"))

# %% [markdown]
# ## Live: the first steps of pretraining
#
# Long enough for the first phases, and too short for any capability.

# %%
live = sweep(LANGUAGE_GEOMETRY, live_grid.points(), device=device)

# %% mystnb={"figure": {"caption": "Live run of the quick profile: RankMe at the last layer and token (blue), the centred rank (green), and the share of next tokens that are right (red) on held-out text. Shades: up to the floor of RankMe, and after it.", "name": "fig-live-language-geometry"}, "image": {"alt": "Three panels of code, prose and stories over the first training steps of a live run: effective ranks and the share of right next tokens."}}
plotting.three_phases(found.phase_panels(live, DOMAINS), columns=3)
plt.show()

# %% [markdown]
# The same probe reads checkpoints that exist, through the call that also reads the real Pythia:
# `source="hub"` with a size such as "160m". Here, the checkpoints of the suite that come with the book.

# %%
kept = checkpoint_steps("442k", 0)
kept = (kept[0], kept[len(kept) // 2], kept[-1])
shipped = scan_checkpoints("442k", 0, kept, source="pocket", samples=100)
print("RankMe at the last layer, by training step".ljust(44), *(f"{step:>7}" for step in kept))
for group, by_layer in zip(GROUPS, shipped["rankme"], strict=True):
    if group in (*DOMAINS, *CAPABILITIES):
        print(group.replace("_", " ").ljust(44), *(f"{rank:7.1f}" for rank in by_layer[-1]))

# %% [markdown]
# ## Recorded: by domain and by capability

# %%
runs = recorded_if_any(LANGUAGE_GEOMETRY)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "The smallest size over its whole training: RankMe (blue), the centred rank (green) and behaviour (red; for text the share of right next tokens, for capabilities that of prompts solved). Thin lines are runs, bold ones medians. Shades at medians over runs: up to the floor of RankMe, from there to acquisition, where there is one.", "name": "fig-language-geometry"}, "image": {"alt": "Seven panels over the training of the smallest model: three domains of text and four capabilities, each with two effective ranks and what the model gets right."}}
smallest = runs.rows[runs.rows["size"] == "98k"]
plotting.three_phases(found.phase_panels(smallest, (*DOMAINS, *CAPABILITIES)))
plt.show()

# %% [markdown]
# ### When capabilities come, and what came before
#
# Medians over the runs that acquire a capability, in training steps; *lead* is from the floor of the rank
# to acquisition. The last three columns count in how many of them the floor comes first.

# %%
found.acquired_table(runs.rows).style.hide(axis="index").format(precision=0, na_rep="no collapse")

# %% [markdown]
# ## The control: prompts without an answer
#
# The control prompts have the same form and no answer. Where their rank makes the same movement at the
# same time, that movement is about the form of the text, and would come before whatever is learned later.

# %% mystnb={"figure": {"caption": "RankMe at the last layer for the prompts of each capability (blue) and for their control prompts (grey), smallest size. Thin lines are runs; bold ones medians with the 25\u201375 % band.", "name": "fig-language-controls"}, "image": {"alt": "Four panels, one a capability, of the effective rank over training for its prompts and for control prompts of the same form without an answer."}}
panels = found.beside_controls(smallest)
plotting.over_checkpoints(panels, plotting.PROMPT_COLOURS, "RankMe", first=4)
plt.show()

# %% [markdown]
# ## What it means
#
# Three questions hide in "the pattern replicates", and the figures answer them apart. Whether the rank
# *falls at first*: it does where the first thing to learn is the same for all inputs, such as which tokens
# are frequent. Whether it *comes back* says that the model tells more inputs apart again, which any
# learning does. Whether either is *about a capability* is what the controls decide: a floor that prompts
# and control prompts share is about the form of the text. Prompts of different forms have their floors
# at different steps, and a comparison with texts alone would take that for a sign.
#
# The verdict cannot be more than "partly", because its third part needs a model that learns a hard
# reasoning task. The paper found its own by screening: seven probes without a gap, then seven more, of
# which one was chosen. A gap found in this way is a candidate, to be tested on another model.
#
# ## Limits
#
# - The models are thousands of times smaller than the paper's, see a few million tokens, and acquire one
#   or two of the four capabilities; the others are drawn and not counted.
# - Texts, last token and last layer are our choices; the row holds every layer. For models of the Hub
#   the texts are not held out: the standard library is public.
# - With few acquired capabilities a run, a rate of leads is coarse. Its interval is over runs.
# - Checkpoints are evenly spaced in the logarithm of the step, so late events are known to about a
#   seventh of their step.
#
# ## Takeaways
#
# - Ask for the rank of inputs that look alike before calling a movement a precursor.
# - One global movement comes before everything that comes late.
#
# <details><summary><b>Question.</b> Why does the rank of prompts that end with the same word start so
# low?</summary>
#
# At the last position an untrained model sees the same token and the same place in every prompt. What
# differs is only what attention brings in, an average of the other words, which is small beside that
# shared vector. Uncentred, the shared vector is nearly everything; the centred rank takes it off.
#
# </details>
