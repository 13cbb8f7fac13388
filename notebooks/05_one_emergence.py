# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The story of one emergence
#
# > **Claim.** When one model acquires one capability, the probability of the answer jumps, and at the same
# > time the attention of a few heads becomes readable: previous token, copy (A-3, A-4 for a single run).
# >
# > **Evidence.** One run of the pocket suite at each of its checkpoints: the probability of the answer, the
# > scores of every head, and the attention patterns of the heads that matter.
# >
# > **Control.** Prompts without an answer, in the same figure; and the same run's other heads.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), Pythia section, which tells the
# story of a Pythia-410M: p(target) from .165 to .605 between two checkpoints, a previous-token head and a copy
# head. One run is an illustration: the verdicts are on the
# [page of all runs](03_pythia_emergence.ipynb).

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
profile = "quick"  # whose number of prompts to ask live: smoke, quick, cpu or paper
device = "cpu"  # these models are small: a GPU changes nothing
seeds = 0  # the run to look at: its seed
size = "442k"  # its size; of this run a few checkpoints come with the book
capability = "string_repetition"  # one of tasks.prompts

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.analysis.capability import answer_attention, progress
from emergence_lib.analysis.heads import head_pattern, head_scores
from emergence_lib.experiments import pythia_evidence as evidence
from emergence_lib.experiments.attention_patching import PatchingGrid, prompts_of
from emergence_lib.experiments.emergence_story import emergence_in_words
from emergence_lib.experiments.pythia import PYTHIA
from emergence_lib.models.pocket import checkpoint_steps, load_pocket
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded
from emergence_lib.tasks.corpus import pocket_tokenizer
from emergence_lib.tasks.prompts import CAPABILITIES

# Validates every parameter: an impossible value stops here, with what is allowed.
require_device(device)
n_prompts = PYTHIA.block(profile).n_prompts
PatchingGrid(sizes=(size,), capabilities=(capability,), seeds=seeds + 1)
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size
found = evidence.one_run(recorded(PYTHIA).rows, size, seeds)
row = found.iloc[0]

# %% [markdown]
# ## The question
#
# The [page of all runs](03_pythia_emergence.ipynb) counts emergences. This one looks at a single run of the
# suite, and asks what a reader of the paper's figure asks: what exactly changed between the last checkpoint
# that fails and the first that passes?
#
# ## Recorded: step by step
#
# Top: the probability of the answer. Below: how strongly each head attends to the previous token, and to the
# token after the earlier occurrence of the current one, on repeated random tokens. The dashed line is the
# emergence.

# %% mystnb={"figure": {"caption": "One run at every checkpoint. Top: probability of the answer for many prompts, the single prompt and the controls. Below: previous-token and induction score of every head; the head that ends highest in colour.", "name": "fig-one-emergence"}, "image": {"alt": "Three aligned panels over training steps of one run: probability of the answer with its control, previous-token scores of all heads, induction scores of all heads, with a dashed line at the emergence."}}
line = evidence.emergence_table(found, "many").set_index("capability").loc[capability]
plotting.one_emergence(
    *(evidence.curve(row, f"{kind}_{capability}") for kind in ("p", "single_p", "control_p")),
    {
        "previous token": np.stack(row.previous_token),
        "induction": np.stack(row.induction),
    },
    line.step,
)
plt.show()

# %% tags=["hide-input"]
Markdown(emergence_in_words(found, capability))

# %% [markdown]
# ## Live: open the checkpoints
#
# These are loaded now and asked again, with the heads scored on fresh random tokens.

# %%
steps = checkpoint_steps(size, seeds)
steps = steps[:: max(1, len(steps) // 8)]  # all of what is shipped, some of a whole run
models = {step: load_pocket(size, seeds, step) for step in steps}
asked, _ = prompts_of(capability, pocket_tokenizer(), n_prompts)
table = progress(models, asked.tokens, asked.target, torch.Generator().manual_seed(5))
table.style.hide(axis="index").format(precision=2)

# %% [markdown]
# *on_answer* is the largest share that any head pays from the last position to the tokens that are the
# answer; the other three are scores of the best head on repeated random tokens. Attention spread evenly
# would give 0.014 in each of these three, and one over the length of the prompt on each answer.
#
# Two heads on the paper's own prompt, through training: the one that ends with the highest previous-token
# score, and the one that ends looking most at the answer.

# %% mystnb={"figure": {"caption": "Attention of two heads on one prompt at some of the checkpoints: rows are queries, the last one predicts the answer. Top: the best previous-token head; bottom: the head that looks most at the answer.", "name": "fig-one-patterns"}, "image": {"alt": "Attention patterns over the tokens of one prompt for two heads at several checkpoints; the upper one lies on the diagonal below the main one, the lower one is spread over several earlier tokens."}}
last = models[max(models)]
previous = head_scores(last, torch.Generator().manual_seed(5))["previous_token"]
copying = answer_attention(last, asked.tokens, asked.target)
single = CAPABILITIES[capability].single(pocket_tokenizer())
patterns = {}
for name, scores in (("previous token", previous), ("on the answer", copying)):
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    for step in sorted(models)[:: max(1, len(models) // 4)][-4:]:
        pattern = head_pattern(models[step], single.tokens, layer, head)
        patterns[f"{name}, head {layer}.{head}\nstep {step}"] = pattern
tokens = [pocket_tokenizer().decode([i]).replace("\n", "⏎") for i in single.tokens[0].tolist()]
plotting.token_attention(patterns, tokens, columns=len(patterns) // 2)
plt.show()

# %% [markdown]
# ## What it means
#
# The probability leaves its plateau well after the previous-token heads are there: they are useful for much
# else, and every run has them early. Nothing in these scores jumps with it. The induction score stays near
# chance: on random tokens no head finds "the token after the earlier occurrence of this one". And the attention
# that the last position pays to the places of the answer does not rise at the emergence either.
#
# What [patching](04_patching.ipynb), across a later crossing of the same run, points at is a head that, in the second line, attends to the line break. That
# tells the later layers how far into the line they are. It fits another way to continue a string: count places
# from the beginning of the line, and look one line up. On these prompts that gives the same answer as
# induction, and repeated lines are common in the training text. We have not shown that this is how the answer
# is found, only that induction as the field defines it is not there.
#
# So the criterion "continues the string" and the mechanism "induction" are two things. A capability can
# emerge by way of another mechanism than the one it is named after.
#
# ## Limits
#
# - One run, chosen because its checkpoints are small enough to ship. The verdicts rest on all runs.
# - The live prompts are other ones than the recorded: 64 each, which differ by up to a tenth in p(target).
# - Attention says where a head reads, not that the answer comes from there: see
#   [attention patching](04_patching.ipynb).
# - The text repeats strings in lines more often than language does. That choice favours counting.
#
# ## Takeaways
#
# - In this run, as in the others of the suite, previous-token heads came long before the capability.
# - Test the mechanism on other inputs than the capability's own prompts: the induction score on random tokens
#   tells copying from counting.
#
# <details><summary><b>Question.</b> How would you tell, from the outside, a model that counts places from one
# that looks for the earlier occurrence?</summary>
#
# Shift the second line: begin it at the third digit. A model that looks for the earlier occurrence continues
# as before; one that counts from the line break gives the digit at the wrong place.
#
# </details>
