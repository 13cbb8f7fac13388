"""The errors a reader can meet, each saying what was given, what is allowed and what to do.

Every error carries an ``exit_code`` so that the command line needs no table of its own:
2 for something the caller asked for wrongly, 1 for something that went wrong while doing it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EmergenceError(Exception):
    """Base of every error this library raises on purpose."""

    exit_code = 1


class ParameterError(EmergenceError, ValueError):
    """A parameter has a wrong type or lies outside its range."""

    exit_code = 2

    def __init__(self, parameter: str, given: object, allowed: str, advice: str = "") -> None:
        self.parameter = parameter
        message = f"{parameter}={given!r} is not possible: {parameter} must be {allowed}."
        super().__init__(f"{message} {advice}".rstrip())


class UnknownNameError(EmergenceError, LookupError):
    """A name (of a task, an experiment, a profile, a tap, …) that nothing answers to."""

    exit_code = 2

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
        suggestion = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"There is no {kind} {given!r}.{suggestion} Known: {', '.join(names) or 'none'}."
        )


class TrainingError(EmergenceError):
    """Training produced a value that is not a number; the message names the step."""


class EstimateError(EmergenceError):
    """An iterative estimate did not settle; the message says what to allow it more of."""


class StoreError(EmergenceError):
    """The results store cannot be read or written; the message names the file."""


class BuildError(EmergenceError):
    """The book cannot be built; the message names the page, cell, link or warning."""
