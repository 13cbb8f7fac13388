"""Experiments: one file a finding."""

from emergence_lib.experiments.architectures import ARCHITECTURES
from emergence_lib.experiments.attention_bias import ATTENTION_BIAS
from emergence_lib.experiments.attention_patching import ATTENTION_PATCHING
from emergence_lib.experiments.base import PROFILES, Experiment, Grid, Point, Verdict
from emergence_lib.experiments.collapse import COLLAPSE
from emergence_lib.experiments.context import CONTEXT
from emergence_lib.experiments.depth import DEPTH
from emergence_lib.experiments.explorer import EXPLORER
from emergence_lib.experiments.heads import HEADS
from emergence_lib.experiments.language_geometry import LANGUAGE_GEOMETRY
from emergence_lib.experiments.lenses import LENSES
from emergence_lib.experiments.linear_map_search import LINEAR_MAP_SEARCH
from emergence_lib.experiments.othello import OTHELLO
from emergence_lib.experiments.plateau import PLATEAU
from emergence_lib.experiments.pre_pretraining import PRE_PRETRAINING
from emergence_lib.experiments.precursors import PRECURSORS
from emergence_lib.experiments.pythia import PYTHIA
from emergence_lib.experiments.q_ratio import Q_RATIO
from emergence_lib.experiments.sparsity import SPARSITY
from emergence_lib.experiments.text_features import TEXT_FEATURES
from emergence_lib.experiments.toy_patching import TOY_PATCHING
from emergence_lib.experiments.toy_precaching import TOY_PRECACHING

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        PLATEAU,
        ATTENTION_BIAS,
        SPARSITY,
        LINEAR_MAP_SEARCH,
        PYTHIA,
        ATTENTION_PATCHING,
        COLLAPSE,
        PRECURSORS,
        LANGUAGE_GEOMETRY,
        ARCHITECTURES,
        TOY_PATCHING,
        PRE_PRETRAINING,
        CONTEXT,
        HEADS,
        DEPTH,
        TOY_PRECACHING,
        OTHELLO,
        LENSES,
        EXPLORER,
        TEXT_FEATURES,
        Q_RATIO,
    )
}
"""The one registry: every experiment by its name."""

__all__ = ["EXPERIMENTS", "PROFILES", "Experiment", "Grid", "Point", "Verdict"]
