"""Experiments: one file a finding."""

from emergence_lib.experiments.base import PROFILES, Experiment, Grid, Point, Verdict

EXPERIMENTS: dict[str, Experiment] = {}
"""The one registry: every experiment by its name."""

__all__ = ["EXPERIMENTS", "PROFILES", "Experiment", "Grid", "Point", "Verdict"]
