"""Tasks: distributions over token sequences whose answers are known."""

from emergence_lib.tasks.base import TASKS, Batch, Task, make_task
from emergence_lib.tasks.cellular_automata import CellularAutomata
from emergence_lib.tasks.corpus import PocketPile
from emergence_lib.tasks.dyck import Dyck
from emergence_lib.tasks.induction import Induction
from emergence_lib.tasks.linear_map import LinearMap
from emergence_lib.tasks.majority import ConditionedMajority, Majority
from emergence_lib.tasks.multitask import MultiTask
from emergence_lib.tasks.neural_ca import NeuralCA
from emergence_lib.tasks.othello import Othello
from emergence_lib.tasks.story_windows import StoryWindows
from emergence_lib.tasks.tinystories import TinyStories
from emergence_lib.tasks.unigram import Unigram

__all__ = [
    "TASKS",
    "Batch",
    "CellularAutomata",
    "ConditionedMajority",
    "Dyck",
    "Induction",
    "LinearMap",
    "Majority",
    "MultiTask",
    "NeuralCA",
    "Othello",
    "PocketPile",
    "StoryWindows",
    "Task",
    "TinyStories",
    "Unigram",
    "make_task",
]
