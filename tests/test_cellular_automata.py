"""Cellular automata against plain-Python loops, exhaustive changes of cells, lookups that see only
the cells they should, and a Bayes predictor that keeps its posterior token by token."""

import itertools
import math

import numpy as np
import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import TASKS, Batch, CellularAutomata, make_task
from emergence_lib.training import masked_loss

torch.set_num_threads(1)

TASKS_TO_TRY = [
    CellularAutomata(),
    CellularAutomata(5, 2, 3, n_rules=4, n_states=4, k=2),
    CellularAutomata(6, 3, 2, n_rules=None, n_states=5, boundary="zero"),
    CellularAutomata(7, 2, 5, n_rules=8, n_states=3, k=3, boundary="zero"),
    CellularAutomata(2, 3, 3, n_rules=2, n_states=6),  # a ring smaller than the window
    CellularAutomata(4, 5, 1, n_rules=3, n_states=2),
]


def draw(task, batch_size=100, seed=0):
    return task.sample(batch_size, torch.Generator().manual_seed(seed))


def slow_step(task, state, table):
    """One transition by hand: every neighbourhood read as a number in base C."""
    for _ in range(task.k):
        after = []
        for i in range(len(state)):
            digits = ""
            for j in range(i - (task.window - 1) // 2, i + task.window // 2 + 1):
                if task.boundary == "wrap":
                    digits += str(state[j % len(state)])
                else:
                    digits += str(state[j]) if 0 <= j < len(state) else "0"
            after.append(table[int(digits, task.colours)])
        state = after
    return state


def split(task, row):
    return [row[i : i + task.state_size] for i in range(0, len(row), task.state_size)]


@pytest.mark.parametrize("task", TASKS_TO_TRY, ids=str)
def test_every_state_follows_from_the_one_before_by_the_rule_of_the_sequence(task):
    batch = draw(task)
    assert batch.tokens.dtype == torch.int64
    assert batch.tokens.shape == (100, task.seq_len) == (100, task.n_states * task.state_size)
    assert batch.loss_mask.shape == (100, task.seq_len - 1)
    assert batch.loss_mask.all()
    assert batch.labels["table"].shape == (100, task.colours**task.window)
    assert set(batch.tokens.unique().tolist()) == set(range(task.vocab_size))
    for row, table in zip(batch.tokens.tolist(), batch.labels["table"].tolist(), strict=True):
        states = split(task, row)
        for before, after in itertools.pairwise(states):
            assert slow_step(task, before, table) == after


def test_an_elementary_automaton_has_its_known_pictures():
    # Wolfram's rule 110, written as the colours after 111, 110, …, 000.
    table = torch.tensor([[int(bit) for bit in reversed("01101110")]])
    task = CellularAutomata(8, 2, 3, n_rules=1, n_states=2)
    rows = [[0, 0, 0, 0, 0, 0, 0, 1]]
    for _ in range(3):
        rows.append(task.step(torch.tensor([rows[-1]]), table)[0].tolist())
    assert ["".join(".#"[cell] for cell in row) for row in rows] == [
        ".......#",
        "......##",
        ".....###",
        "....##.#",
    ]


# --- which cells are needed -------------------------------------------------------------------

SMALL = [
    CellularAutomata(7, 2, 3, n_rules=60, n_states=3),
    CellularAutomata(7, 2, 3, n_rules=60, n_states=3, k=2),
    CellularAutomata(7, 2, 3, n_rules=60, n_states=3, boundary="zero"),
    CellularAutomata(7, 2, 3, n_rules=60, n_states=3, k=2, boundary="zero"),
    CellularAutomata(6, 2, 4, n_rules=60, n_states=3),
    CellularAutomata(4, 2, 3, n_rules=60, n_states=3, k=3),
]


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_the_target_marks_the_cells_whose_change_can_change_the_answer(task):
    S = task.state_size
    changes = np.zeros((S, S), dtype=bool)  # [cell of the next state, cell changed]
    states = list(itertools.product(range(2), repeat=S))
    for table in task.tables.tolist():
        after = {state: slow_step(task, state, table) for state in states}
        for state, j in itertools.product(states, range(S)):
            flipped = (*state[:j], 1 - state[j], *state[j + 1 :])
            changes[:, j] |= np.array(after[state]) != np.array(after[flipped])
    expected = np.zeros((3 * S - 1, 3 * S - 1), dtype=bool)
    for t, i, j in itertools.product((1, 2), range(S), range(S)):
        expected[t * S + i - 1, (t - 1) * S + j] = changes[i, j]
    target = task.attention_target()
    assert target.dtype == torch.bool
    assert (target.numpy() == expected).all()
    assert not target.triu(1).any()  # no query needs its future


@pytest.mark.parametrize("task", TASKS_TO_TRY, ids=str)
def test_a_lookup_that_sees_only_the_needed_cells_predicts_everything(task):
    batch, target = draw(task, 3), task.attention_target()
    rng = np.random.default_rng(0)
    assert target.any(1).tolist() == [False] * (task.state_size - 1) + [True] * (
        task.seq_len - task.state_size
    )
    for row, table in zip(batch.tokens.numpy(), batch.labels["table"].tolist(), strict=True):
        for query in target.any(1).nonzero().flatten().tolist():
            seen = np.where(
                np.append(target[query].numpy(), False),
                row,
                rng.integers(task.colours, size=len(row)),
            )
            t, i = divmod(query + 1, task.state_size)
            before = seen[(t - 1) * task.state_size : t * task.state_size]
            assert slow_step(task, before.tolist(), table)[i] == row[query + 1]


# --- distributions and seeds ------------------------------------------------------------------


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


def test_rules_tables_and_first_states_are_uniform():
    task = CellularAutomata(4, 2, 3, n_rules=8, n_states=2, rule_seed=1)
    batch = draw(task, 16_000)
    first = batch.tokens[:, :4].numpy() @ [8, 4, 2, 1]
    assert chi_square(np.bincount(first, minlength=16), 1000) < 37.7  # 99.9 % points
    assert len(task.tables.unique(dim=0)) == 8
    which = (batch.labels["table"][:, None] == task.tables).all(-1)
    assert (which.sum(1) == 1).all(), "every rule is one of the pool"
    assert chi_square(which.sum(0).tolist(), 2000) < 24.3
    for rules in (
        CellularAutomata(n_rules=8192).tables,
        draw(CellularAutomata(4, n_rules=None, n_states=2), 8192).labels["table"],
    ):
        counts = [np.bincount(column, minlength=4) for column in rules.T.numpy()]
        assert sum(chi_square(count, 2048) for count in counts) < 256  # 64 · 3 degrees


def test_made_up_rules_differ_between_sequences():
    tables = draw(CellularAutomata(n_rules=None), 50).labels["table"]
    assert len(tables.unique(dim=0)) == 50
    assert CellularAutomata(n_rules=None).tables is None


def test_everything_random_comes_from_the_seeds():
    task = CellularAutomata()
    torch.manual_seed(0)
    first = draw(task).tokens
    torch.manual_seed(1)
    assert torch.equal(first, draw(CellularAutomata()).tokens)
    assert not torch.equal(first, draw(task, seed=1).tokens)
    assert not torch.equal(task.tables, CellularAutomata(rule_seed=1).tables)
    made_up = CellularAutomata(n_rules=None)
    assert torch.equal(draw(made_up).tokens, draw(CellularAutomata(n_rules=None)).tokens)
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(task.sample(9, generator).tokens, task.sample(9, generator).tokens)


# --- floors -----------------------------------------------------------------------------------


def oracle_logits(task, batch):
    """A predictor told the rule: no idea within the first state, sure of everything after."""
    logits = torch.zeros(*batch.loss_mask.shape, task.colours, dtype=torch.float64)
    for b, (row, table) in enumerate(
        zip(batch.tokens.tolist(), batch.labels["table"].tolist(), strict=True)
    ):
        for t, state in enumerate(split(task, row)[:-1], start=1):
            for i, colour in enumerate(slow_step(task, state, table)):
                logits[b, t * task.state_size + i - 1, colour] = 50.0
    return logits


@pytest.mark.parametrize("task", TASKS_TO_TRY, ids=str)
def test_the_floor_is_reached_by_a_predictor_that_is_told_the_rule(task):
    batch = draw(task, 20)
    logits = oracle_logits(task, batch)
    assert masked_loss(logits, batch).item() == pytest.approx(task.floor, abs=1e-9)
    assert task.accuracy(logits, batch) == 1.0
    assert task.state_accuracy(logits, batch).tolist() == [1.0] * (task.n_states - 1)


def bayes_logits(task, batch, rules):
    """ln p of the next token under a uniform prior on `rules`, updated after each token."""
    logits = torch.full((*batch.loss_mask.shape, task.colours), -math.inf, dtype=torch.float64)
    for b, row in enumerate(batch.tokens.tolist()):
        alive = list(rules)
        for position in range(1, len(row)):
            t, i = divmod(position, task.state_size)
            if t == 0:
                logits[b, position - 1] = -math.log(task.colours)
                continue
            state = row[(t - 1) * task.state_size : t * task.state_size]
            votes = [slow_step(task, state, rule)[i] for rule in alive]
            share = np.bincount(votes, minlength=task.colours) / len(votes)
            with np.errstate(divide="ignore"):
                logits[b, position - 1] = torch.from_numpy(np.log(share))
            alive = [r for r, vote in zip(alive, votes, strict=True) if vote == row[position]]
    return logits


POOLS = [
    CellularAutomata(3, 2, 3, n_rules=5, n_states=3),
    CellularAutomata(4, 3, 2, n_rules=20, n_states=4, k=2, boundary="zero"),
    CellularAutomata(5, 2, 2, n_rules=40, n_states=3),  # 16 tables, so many twice
    CellularAutomata(4, 4, 3, n_rules=1, n_states=3),
    CellularAutomata(3, 2, 2, n_rules=None, n_states=4),
    CellularAutomata(4, 2, 3, n_rules=None, n_states=3, boundary="zero"),
]


@pytest.mark.parametrize("task", POOLS, ids=str)
def test_bayes_loss_is_that_of_a_predictor_that_keeps_its_posterior(task):
    batch = draw(task, 12)
    if task.n_rules is None:  # a made-up rule is one of all tables
        rules = list(itertools.product(range(task.colours), repeat=task.n_entries))
    else:
        rules = task.tables.tolist()
    logits = bayes_logits(task, batch, rules)
    loss = task.bayes_loss(batch)
    assert loss.dtype == torch.float64
    for b in range(12):
        alone = Batch(batch.tokens[b : b + 1], batch.loss_mask[b : b + 1])
        assert loss[b].item() == pytest.approx(masked_loss(logits[b : b + 1], alone).item())
    if task.n_rules == 1:
        assert loss.tolist() == pytest.approx([task.floor] * 12)
    else:
        assert loss.mean() > task.floor + 0.02


def test_bayes_floor_estimates_the_mean_over_every_rule_and_first_state():
    task = CellularAutomata(3, 2, 3, n_rules=5, n_states=3)
    rows = []
    for table in task.tables.tolist():
        for state in itertools.product(range(2), repeat=3):
            states = [list(state)]
            for _ in range(2):
                states.append(slow_step(task, states[-1], table))
            rows.append([cell for state in states for cell in state])
    tokens = torch.tensor(rows)
    batch = Batch(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))
    exact = masked_loss(bayes_logits(task, batch, task.tables.tolist()), batch).item()
    assert task.bayes_loss(batch).mean().item() == pytest.approx(exact)
    mean, error = task.bayes_floor(4000, torch.Generator().manual_seed(0))
    assert 0 < error < 0.003
    assert abs(mean - exact) < 4 * error
    assert mean > task.floor + 20 * error
    fewer = task.bayes_floor(1000, torch.Generator().manual_seed(0))[1]
    assert fewer == pytest.approx(2 * error, rel=0.1)


def test_long_sequences_tell_the_whole_rule():
    """With the rule found in every sequence, finding it has cost ln N nats."""
    task = CellularAutomata()
    loss = task.bayes_loss(draw(task, 50))
    assert loss.tolist() == pytest.approx([task.floor + math.log(256) / 255] * 50)


# --- accuracy, budget, refusals ---------------------------------------------------------------


def test_accuracy_by_state_and_without_the_states_that_show_the_rule():
    task = CellularAutomata(4, 3, 3, n_states=4)
    batch = draw(task, 10)
    right = 5.0 * torch.nn.functional.one_hot(batch.tokens[:, 1:], 3).float()
    right[:, :3] *= -1  # inside the first state nothing counts
    assert task.accuracy(right, batch) == 1.0
    right[:, 3] *= -1  # cell 0 of state 1: the rule is not known yet
    assert task.state_accuracy(right, batch).tolist() == [0.75, 1.0, 1.0]
    assert task.accuracy(right, batch) == 1.0
    right[:5, 14] *= -1  # cell 3 of state 3, in half the sequences
    assert task.state_accuracy(right, batch).tolist() == [0.75, 1.0, 0.875]
    assert task.accuracy(right, batch) == pytest.approx(15 / 16)
    short = CellularAutomata(4, 3, 3, n_states=2)
    batch = draw(short, 10)
    logits = torch.nn.functional.one_hot(batch.tokens[:, 1:], 3).float()
    logits[:, 3] *= -1
    assert short.accuracy(logits, batch) == 0.75


def test_the_batch_shrinks_as_states_grow_so_that_tokens_stay():
    sizes = {S: CellularAutomata(S).sequences_for(65_536) for S in (4, 16, 512)}
    assert sizes == {4: 1024, 16: 256, 512: 8}
    assert CellularAutomata(10).sequences_for(499) == 3
    with pytest.raises(ParameterError, match=r"tokens=255 .* an integer ≥ 256"):
        CellularAutomata().sequences_for(255)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"state_size": 1}, r"state_size=1 .* an integer ≥ 2"),
        ({"colours": 1}, r"colours=1 .* an integer ≥ 2"),
        ({"window": 0}, r"window=0 .* an integer ≥ 1"),
        ({"window": 9}, r"window=9 .* at most 8 with colours=4\. .*65,536"),
        ({"colours": 65_537, "window": 1}, r"window=1 .* at most 0 with colours=65537"),
        ({"n_rules": 0}, r"n_rules=0 .* an integer ≥ 1"),
        ({"n_rules": 2.0}, r"n_rules=2\.0 .* an integer"),
        ({"n_states": 1}, r"n_states=1 .* an integer ≥ 2"),
        ({"k": 0}, r"k=0 .* an integer ≥ 1"),
        ({"boundary": "mirror"}, r"boundary='mirror' .* 'wrap' or 'zero'"),
        ({"rule_seed": -1}, r"rule_seed=-1 .* an integer ≥ 0"),
    ],
)
def test_impossible_parameters_are_refused(parameters, says):
    with pytest.raises(ParameterError, match=says):
        CellularAutomata(**parameters)


def test_the_largest_table_is_allowed():
    assert CellularAutomata(window=8).n_entries == 65_536


def test_impossible_calls_are_refused():
    with pytest.raises(ParameterError, match="batch_size=0"):
        draw(CellularAutomata(), 0)
    with pytest.raises(ParameterError, match=r"n_sequences=1 .* an integer ≥ 2"):
        CellularAutomata().bayes_floor(1, torch.Generator())
    task = CellularAutomata(n_rules=None, k=2)
    with pytest.raises(ParameterError, match=r"k=2 .* Give n_rules"):
        task.bayes_loss(draw(task, 2))


def test_the_task_is_registered():
    assert TASKS["cellular_automata"] is CellularAutomata
    assert make_task("cellular_automata", state_size=8, n_rules=None) == CellularAutomata(
        8, n_rules=None
    )
