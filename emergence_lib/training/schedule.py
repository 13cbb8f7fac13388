"""When to look: the steps at which a run is evaluated or kept."""

from __future__ import annotations

from emergence_lib.tasks.base import require_int


def linear_schedule(steps: int, every: int) -> tuple[int, ...]:
    """0, every, 2·every, … and the last step.

    Raises:
        ParameterError: `steps` or `every` is not a positive integer.
    """
    require_int("steps", steps, 1)
    require_int("every", every, 1)
    return (*range(0, steps, every), steps)


def log_schedule(steps: int, n_points: int) -> tuple[int, ...]:
    """0 and about `n_points` steps evenly spaced in log(step) from 1 to `steps`, without repeats.

    Early steps are integers closer together than the spacing asks, so there may be fewer points.

    Raises:
        ParameterError: `steps` is not a positive integer or `n_points` is below 2.
    """
    require_int("steps", steps, 1)
    require_int("n_points", n_points, 2)
    ratio = steps ** (1 / (n_points - 1))
    return (0, *sorted({round(ratio**i) for i in range(n_points)}))


def pythia_schedule(steps: int = 143_000) -> tuple[int, ...]:
    """0, powers of two to 512, then every 1,000: the 154 public Pythia checkpoints (Biderman et
    al. 2023, arXiv 2304.01373), cut at `steps`.

    Raises:
        ParameterError: `steps` is not a positive integer.
    """
    require_int("steps", steps, 1)
    full = (0, *(2**i for i in range(10)), *range(1_000, 143_001, 1_000))
    return tuple(step for step in full if step <= steps)


def scaled_pythia_schedule(steps: int, n_strides: int = 143) -> tuple[int, ...]:
    """Pythia's checkpoints for a run of another length: 0, powers of two, then equal strides.

    143 strides of 1,000 steps are `pythia_schedule` whole. Strides are rounded to whole steps.

    Raises:
        ParameterError: `n_strides` is not a positive integer, or `steps` not an integer at least
            as large.
    """
    require_int("n_strides", n_strides, 1)
    require_int("steps", steps, n_strides)
    strides = [round(steps * i / n_strides) for i in range(1, n_strides + 1)]
    powers = [2**i for i in range(strides[0].bit_length()) if 2**i < strides[0]]
    return (0, *powers, *strides)
