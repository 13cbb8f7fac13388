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
from emergence_lib.analysis.capability import progress
from emergence_lib.analysis.heads import chance_score, head_scores
from emergence_lib.experiments import pythia_evidence as evidence
from emergence_lib.experiments.attention_patching import PatchingGrid, prompts_of
from emergence_lib.experiments.pythia import PYTHIA
from emergence_lib.models.pocket import checkpoint_steps, load_pocket
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded
from emergence_lib.tasks.corpus import pocket_tokenizer

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
p = evidence.curve(row, f"p_{capability}")
before, after = (
    (p[p.index < line.step].iloc[-1], p[p.index > line.step].iloc[0])
    if line.observed
    else (p.iloc[-1],) * 2
)
heads = {name: evidence.head_time(row, name) for name in ("previous_token", "induction")}
told = "; ".join(
    f"the best {name.replace('_', ' ')} score is half-way up at step {time:.0f}"
    if time is not None
    else f"no head gains a {name.replace('_', ' ')} score"
    for name, time in heads.items()
)
Markdown(
    f"In this run {capability.replace('_', ' ')} "
    + (
        f"emerges at step {line.step:.0f} of {line.horizon}: the mean probability of the answer is "
        f"{before:.2f} at the checkpoint before and {after:.2f} at the one after, and {p.iloc[-1]:.2f} at "
        f"the end ({line.reversals:.0f} reversals). {told[0].upper()}{told[1:]}."
        if line.observed
        else f"does not emerge within {line.horizon} steps. {told[0].upper()}{told[1:]}."
    )
)

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

# %% tags=["hide-input"]
Markdown(
    f"Attention spread evenly over what came before scores {chance_score(50):.3f} in each of the three."
)

# %% [markdown]
# The heads that end with the highest previous-token and induction score, on one prompt, through training.

# %% mystnb={"figure": {"caption": "Attention of two heads on one prompt at some of the checkpoints: rows are queries, the last one predicts the answer. Top: the best previous-token head; bottom: the best induction head.", "name": "fig-one-patterns"}, "image": {"alt": "Attention patterns over the tokens of one prompt for two heads at several checkpoints: first spread out, later a diagonal below the main one and a line to the tokens that followed the earlier occurrence."}}
last = head_scores(models[max(models)], torch.Generator().manual_seed(5))
chosen = {
    name: divmod(int(last[key].argmax()), last[key].shape[1])
    for name, key in (("previous token", "previous_token"), ("induction", "induction"))
}
shown = sorted(models)[:: max(1, len(models) // 4)][-4:]
patterns = {}
for name, (layer, head) in chosen.items():
    for step in shown:
        tap = {f"pattern.{layer}": None}
        with torch.no_grad():
            models[step](asked.tokens[:1], tap=tap)
        patterns[f"{name}, head {layer}.{head}\nstep {step}"] = tap[f"pattern.{layer}"][
            0, head
        ].cpu()
tokens = [pocket_tokenizer().decode([i]).replace("\n", "⏎") for i in asked.tokens[0].tolist()]
plotting.token_attention(patterns, tokens, columns=len(shown))
plt.show()
