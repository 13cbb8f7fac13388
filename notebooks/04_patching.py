# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention patching: do the new patterns carry the new capability?
#
# > **Claim.** Put the attention patterns of the checkpoint that has a capability into the one before, which
# > has not, and most of the gap is recovered. The effect is spread over many heads.
# >
# > **Evidence.** For every run and capability of the pocket suite, each head's pattern moved alone, then
# > the best K together, from none to all. The verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** Heads in random order; the patterns put back the other way; values and head outputs moved
# > instead of patterns; prompts without an answer.
#
# Source: paper A, [Baherwani et al.](../book/references.md#baherwani2026), Pythia section. The paper patches
# the real Pythia; here it is the small suite trained for this book.

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
seeds = None  # runs a size (1)
sizes = None  # sizes of the pocket suite (442k)
capabilities = None  # for example ["ioi", "string_repetition"] (string_repetition)
n_prompts = None  # prompts, and as many controls (64)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.analysis.heads import head_pattern
from emergence_lib.analysis.patching import patch_heads
from emergence_lib.claims import evidence
from emergence_lib.experiments import patching_evidence
from emergence_lib.experiments.attention_patching import ATTENTION_PATCHING
from emergence_lib.models import bridge, pythia
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded
from emergence_lib.sweep import sweep
from emergence_lib.tasks.prompts import CAPABILITIES

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {
    "seeds": seeds,
    "sizes": sizes,
    "capabilities": capabilities,
    "n_prompts": n_prompts,
}
require_device(device)
live_grid = ATTENTION_PATCHING.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()
torch.set_num_threads(1)  # one thread a process: the same numbers on every machine size

# %% [markdown]
# ## The question
#
# Two checkpoints of one run, one that fails and the next that passes. Everything in the model moved a
# little between them. Which part of it made the difference? Attention patching asks it of each head: run
# the earlier model, but let this head attend as it does in the later one, on the same prompt.
#
# A head's *pattern* says from where it reads, its *values* what it reads there; its *output* $z$ is both.
# If learning where to look is what a capability waits for, patterns should do. If what is read changed
# too, they should not, and values or outputs should recover more.
#
# Write $p$ for the probability of the right answer. What a patch recovers is
#
# $$\frac{p_\text{patched} - p_\text{pre}}{p_\text{post} - p_\text{pre}},$$
#
# both differences averaged over the prompts first: 0 is the model before, 1 the one after, and more than
# 1 is possible.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("A-5", "A-6"))

# %% [markdown]
# ## Live: patch one emergence
#
# The checkpoints around one emergence come with the book, so this trains nothing. Between *pre* and *post*
# lie about 10 % of the training, with the emergence in the middle; the paper's neighbouring checkpoints are in
# the recorded runs beside it.

# %%
live = sweep(ATTENTION_PATCHING, live_grid.points(), device=device)
live[["size", "seed", "capability", "pre_step", "post_step", "p_pre", "p_post"]]

# %% mystnb={"figure": {"caption": "Live: change of the probability of the answer when one head's pattern, values or output is moved from post to pre, mean over the prompts. Blue helps.", "name": "fig-live-effects"}, "image": {"alt": "Three maps of layer by head for one pair of checkpoints, showing the change in the probability of the answer when that head's pattern, values or output is patched."}}
one = live.dropna(subset="pre_step").iloc[0]
pre, post = (
    pythia.load(one["size"], int(one.seed), int(step), one.source)
    for step in (one.pre_step, one.post_step)
)
shape = (pre.model.config.n_layers, pre.model.config.n_heads)
plotting.head_effects(
    {
        name: np.asarray(one[f"delta_{component}"]).reshape(shape)
        for name, component in (("pattern", "pattern"), ("values", "v"), ("output z", "z"))
    },
    "Δp(target)",
)
plt.show()

# %% [markdown]
# What does the head with the largest effect look at? Its attention on the paper's own prompt
# before and after.

# %% mystnb={"figure": {"caption": "Attention of the head whose pattern has the largest effect, on one prompt, before and after the emergence. Rows are queries, the last one predicts the answer.", "name": "fig-live-patterns"}, "image": {"alt": "Two attention patterns over the tokens of one prompt, of the same head before and after the emergence."}}
layer, head = divmod(int(np.argmax(one.delta_pattern)), shape[1])
prompt = CAPABILITIES[one.capability].single(pre.tokenizer).tokens
patterns = {
    f"head {layer}.{head}, {side}: step {step:.0f}": head_pattern(loaded.model, prompt, layer, head)
    for side, step, loaded in (("pre", one.pre_step, pre), ("post", one.post_step, post))
}
tokens = [pre.tokenizer.decode([i]).replace("\n", "⏎") for i in prompt[0].tolist()]
plotting.token_attention(patterns, tokens)
plt.show()

# %% [markdown]
# The same with transformer-lens, for readers who live there: a hook writes the head's pattern of *post* into
# *pre*. Both give the same Δp on this prompt.

# %% tags=["hide-cell"]
single = CAPABILITIES[one.capability].single(pre.tokenizer)
ours = patch_heads(pre.model, post.model, single.tokens, single.target)[0, layer, head].item()
print(f"this library: Δp = {ours:+.6f}")
if importlib.util.find_spec("transformer_lens") is not None:  # a large package, not on Binder
    lens_pre, lens_post = bridge(pre.model), bridge(post.model)
    name = f"blocks.{layer}.attn.hook_pattern"
    with torch.no_grad():
        _, cache = lens_post.run_with_cache(prompt)

        def from_post(pattern, hook):
            pattern[:, head] = cache[name][:, head]
            return pattern

        before = lens_pre(prompt)[0, -1].softmax(-1)[single.target]
        after = lens_pre.run_with_hooks(prompt, fwd_hooks=[(name, from_post)])
    theirs = (after[0, -1].softmax(-1)[single.target] - before).item()
    print(f"transformer-lens: Δp = {theirs:+.6f}")

# %% [markdown]
# ## Recorded: every emergence of the suite

# %%
runs = recorded(ATTENTION_PATCHING)
Markdown(f"Source: {runs.label}. {runs.gap}")

# %% mystnb={"figure": {"caption": "Share of the gap recovered by the best K heads, against K as a share of all heads; pre and post about 10 % of training apart. Median and 25\u201375 % band over runs and capabilities. Grey: patterns, heads in random order. Purple: share of the gap that post loses when the patterns of pre are put into it; above 1 it ends below pre.", "name": "fig-recovered"}, "image": {"alt": "Curves of the share of the gap recovered against the share of heads patched, for patterns, values and head outputs, with random order and the reverse patch as controls."}}
wide = patching_evidence.patched(runs.rows, int(runs.rows.strides.max()))
names = {
    "patterns": "recovered_pattern",
    "values": "recovered_v",
    "head outputs": "recovered_z",
    "patterns, random order": "recovered_random",
    "patterns put back": "lost_reverse",
}
plotting.recovered_by_heads({name: wide[column].tolist() for name, column in names.items()})
plt.show()

# %% [markdown]
# By capability and bracket: *strides* 1 are the paper's neighbouring checkpoints. Only runs whose probability
# rises by 0.05 or more from pre to post are counted; of a smaller gap the fraction is noise.

# %%
patching_evidence.patching_table(runs.rows).style.hide(axis="index").format(precision=2, na_rep="–")

# %% [markdown]
# ## What it means
#
# A few patterns, chosen as the best, recover a part of the gap, and several times as much as equally many random
# heads: patterns do carry something. But it is a part. The verdict above says how much of it, and that is less
# than the paper's "most". Moving *all* patterns adds little to the best quarter, and for some runs takes away: a
# pattern from the later model is put on values and under MLPs that have not moved with it. That this is the
# reason is our guess.
#
# Head outputs, which are pattern and values at once, recover more. How values alone compare with patterns
# depends on the capability: see the table.
#
# ## Limits
#
# - The bracket is where the bisection lands. With reversals that is often after the first crossing, and the
#   earlier checkpoint then has a part of the capability already.
# - Heads are ranked, and fractions computed, on 64 prompts other than those of the page of emergences; the two
#   sets differ by several hundredths in p(target), as much as the smaller gaps.
# - The ranking is chosen on the prompts on which the recovery is then shown, as in the paper. Random orders show
#   what the choice is worth; prompts held out for it would show it better.
# - Recovered fractions divide by a gap, and p(target) wavers from checkpoint to checkpoint: a bracket may begin
#   at a chance low. Runs with a gap below 0.05 are left out, which leaves some runs in one bracket only.
# - The emergences here are those of the pocket suite, and mostly of one capability, string repetition.
# - Patching one head leaves everything above it to react; effects of single heads do not add up.
# - These models are language models. Whether a pattern is enough in a toy model, where every jump is known, is
#   the question of [another page](09_toy_patching.ipynb).
#
# ## Takeaways
#
# - Show the whole curve, from no head to all: its maximum and its end are different claims.
# - Always show random heads beside the best.
#
# <details><summary><b>Question.</b> How can the best eight heads recover more than all sixteen?</summary>
#
# A pattern is useful together with the values it reads and the layers that take up the result. A pattern that
# moved along with those, put into a model in which they have not moved, reads the wrong thing. Its Δp is
# negative, so it comes last in the ranking, and adding it takes recovery away.
#
# </details>
