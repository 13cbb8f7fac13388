"""Training: the loop and its checkpoint schedules."""

from emergence_lib.training.schedule import (
    linear_schedule,
    log_schedule,
    pythia_schedule,
    scaled_pythia_schedule,
)
from emergence_lib.training.train import Observer, Run, TrainConfig, masked_loss, train

__all__ = [
    "Observer",
    "Run",
    "TrainConfig",
    "linear_schedule",
    "log_schedule",
    "masked_loss",
    "pythia_schedule",
    "scaled_pythia_schedule",
    "train",
]
