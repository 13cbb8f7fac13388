# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Othello: discs that do not matter now
#
# > **Claim.** A model of Othello games represents discs that are useless for the next move, but worse than
# > useful ones (C-5). The direct part of the gradient builds only useful squares; the pre-cached and the
# > shared part build useless ones (C-6).
# >
# > **Evidence.** Linear probes for the owner of every square, useful and useless squares apart, over
# > layers; the influence of each part of the gradient over training, with intervals over runs, squares,
# > positions and games. The verdicts, computed from the recorded runs, follow below.
# >
# > **Control.** The same probes on the model before training; the likelier owner of each square without
# > any model; a disc turned over inside the model, along the probe's direction and along a random one.
#
# Source: paper C, [Rofin et al.](../book/references.md#rofin2026), section on Othello. The game as a test
# of world models is due to [Li et al.](../book/references.md#li2023), linear probes of "mine" and "theirs"
# to [Nanda et al.](../book/references.md#nanda2023).

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
size = None  # side of the board: 4, 6 or 8 (6)
n_layers = None  # of the model (2)
d_model = None  # width of the model (64)
steps = None  # training steps (800)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
from IPython.display import Markdown

from emergence_lib import plotting
from emergence_lib.claims import evidence
from emergence_lib.experiments import othello_evidence as found
from emergence_lib.experiments.othello import OTHELLO
from emergence_lib.provenance import require_device
from emergence_lib.recorded import recorded_if_any
from emergence_lib.sweep import sweep

# Validates every parameter: an impossible value stops here, with what is allowed.
given = {"seeds": seeds, "size": size, "n_layers": n_layers, "d_model": d_model, "steps": steps}
require_device(device)
live_grid = OTHELLO.block(profile, **{k: v for k, v in given.items() if v is not None})
plotting.use_style()

# %% [markdown]
# ## The question
#
# A model reads the moves of a random game and predicts the next one. Every legal move is equally likely,
# so all there is to learn is which moves are legal, and for that the model has to work out the board.
#
# But one move rarely needs the whole board. Turn one disc over in thought: if the same moves stay legal,
# that disc was *useless* for this prediction. Nothing in the loss at this position asks for it. A model
# may still have a reason to know it, since a later move may depend on it. Or it may know it for no reason
# of its own, since the weights that follow useful discs are the same that follow useless ones. The
# gradient can be split into these reasons:
#
# - **direct**: from the prediction at this position, through its residual stream;
# - **pre-cached**: from later predictions, through the same residual stream;
# - **shared**: from everywhere else, reaching this position because the weights are shared.
#
# ## What the recorded runs say

# %% tags=["hide-input"]
Markdown(evidence("C-5", "C-6"))

# %% [markdown]
# ## Live: train it yourself
#
# A small model and a short training. The drawing is one held-out game half-way through. Left, the discs,
# those of the player to move in black; in the middle what linear probes read, with a cross where they name
# the wrong owner; right, the model's next move.

# %%
live = sweep(OTHELLO, live_grid.points(), device=device)
Markdown(found.legal_sentence(live))

# %% mystnb={"figure": {"caption": "Live run of the quick profile: a held-out board (useful discs framed blue, useless ones red), the probes' read-out of it, and the probabilities of the next move (legal moves framed).", "name": "fig-live-othello"}, "image": {"alt": "Three boards side by side: the discs with useful and useless ones framed, the signed read-out of the probes with crosses on wrong owners, and the model's probabilities of the next move with legal moves framed."}}
plotting.othello_board(**found.example(live.iloc[0]))
plt.show()

# %% [markdown]
# ## Recorded: how well are the squares represented?

# %%
runs = recorded_if_any(OTHELLO)
Markdown(f"Source: {runs.label}. {runs.gap} {found.legal_sentence(runs.rows)}")

# %% mystnb={"figure": {"caption": "Share of occupied squares whose owner (mine or theirs) a linear probe names, by layer; means over runs with 95 % intervals. Dashed: the model before training. Dotted: the likelier owner, without a model. Useful and useless discs are compared on the same squares and positions.", "name": "fig-othello-probes"}, "image": {"alt": "Accuracy of linear probes over layers for useful and useless squares, in the trained model as solid lines and before training as dashed lines, with guesses without a model as dotted lines."}}
plotting.probe_accuracy(found.accuracy_table(runs.rows), found.guess_accuracy(runs.rows))
plt.show()

# %% [markdown]
# Usefulness is not spread evenly: early in a game nearly every disc matters, late in it few do. Comparing
# all useful with all useless discs would compare the opening with the endgame. So a square enters, at each
# position, only if it is useful in some test games and useless in others, and then counts once for each.
#
# ### What built them?

# %% mystnb={"figure": {"caption": "Integrated influence of each part of the gradient on the read-outs of the 16 central squares, averaged over layers, positions and squares. Positive builds the read-out. Bars are 95 % t intervals over the unit named above each panel: only runs are independent trainings.", "name": "fig-othello-influence"}, "image": {"alt": "Four panels, intervals over runs, squares, positions and games: influence of the direct, pre-cached and shared part of the gradient on useful and on useless squares, with a line at zero."}}
plotting.influence_by_part(found.influence_table(runs.rows), found.PART_WORDS)
plt.show()

# %% [markdown]
# The same numbers have four intervals, since it matters what is taken to be a repetition. An interval over
# games says how exactly *this* training was measured. One over squares or positions says how alike they
# are. Only the interval over runs says what another training would give, and the verdict rests on it.
#
# ## The control: is what the probes read used?
#
# A probe shows that the owner of a square can be read off, not that the model reads it. So one useful disc
# is turned over inside the model: the residual stream at this position is moved along the probe's
# direction, four times as far as the read-out needs to name the other owner. The moves that become legal
# should become likely, and those that stop being legal unlikely.

# %% mystnb={"figure": {"caption": "Share of the moves that a turned disc changes which the model predicts as on the turned board, by the layer at which the residual stream is edited. Grey: moved as far in a random direction. Dashed: without an edit. Means over runs.", "name": "fig-othello-turned"}, "image": {"alt": "Share of changed moves predicted as on the turned board against the edited layer: along the probe's direction, in a random direction as long, and without any edit."}}
plotting.turned_discs(found.intervention_table(runs.rows), len(runs.rows))
plt.show()

# %% tags=["hide-input"]
Markdown(found.intervention_sentence(runs.rows))

# %% [markdown]
# ## What it means
#
# That a useless disc can be read off says little by itself. It could be read off, to some degree, before
# training, since the moves themselves are in the residual stream; and some discs are easier to infer than
# others for any model. What training adds is the distance between the solid and the dashed lines.
#
# Influence is about causes during training, and it is linear: what a step of each part does to the
# read-out, to first order. Steps are not small, so the first order overstates: the three parts together
# come to many times the mismatch that there was to remove (both are in the verdict). Read the parts
# against each other, not as shares of the read-out. And note what the shared part holds: all that other
# positions teach the same weights, among them the same square at positions at which it is useful.
#
# Nor is the direct part blind to discs that are useless in a game. It is defined by layer and position, and
# at the same position the same disc is useful in other games of the batch: what their predictions teach the
# weights there serves all games. The paper's sharp line, direct for useful squares only, is not seen here.
# Neither is a pre-cached part: its intervals over runs include 0 on both kinds of square. That does not
# say that nothing is pre-cached, since what is pre-cached at other positions counts as shared.
#
# ## Limits
#
# - The board is 6 × 6 and the model a small one, trained for minutes. It plays far from perfectly, so
#   "useless" is a fact about the game, not about what this model makes of it. The paper's sizes are in the
#   `paper` profile, which is not recorded.
# - Influence is measured at one training step in a hundred, each standing for the next ones, with Adam's
#   second moment estimated from these steps and no first moment. The paper measures every step.
# - The paper takes the mismatch on the batch that a step is about to learn from, here it is that of fresh
#   games. A batch here has 32 games, and every step fits its own batch: measured on it, the influences add
#   up to far more than the mismatch, most of which the next batches undo.
# - The paper's numbers have other units (their probes and model are others), so signs and ratios compare,
#   sizes do not.
# - A read-out moved "to the other owner" moves along a decoding direction, which need not be the direction
#   in which the model writes. A weak effect there would not show that the board is not used.
#
# ## Takeaways
#
# - Compare useful with useless on the same squares and positions, and hold the untrained model beside
#   both.
# - Say what an interval is over before saying that it excludes zero.
#
# <details><summary><b>Question.</b> Is a disc in a corner ever turned over, and can it be useful?</summary>
#
# It is never turned over: no straight run of discs ends beyond it. But it can close runs for its owner, so
# whose it is decides whether moves along three lines are legal. It can be useful for many moves, and once
# it is known it never changes.
#
# </details>
