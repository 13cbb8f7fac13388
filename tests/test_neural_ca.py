"""Neural cellular automata against torch's own convolutions, patches cut by hand, and changes of
single patches."""

import io
import itertools
import math
import zlib

import pytest
import torch
import torch.nn.functional as F

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import TASKS, NeuralCA, make_task
from emergence_lib.training import masked_loss

torch.set_num_threads(1)

ANY = {"min_ratio": 0.0, "max_ratio": 9.0}
TASKS_TO_TRY = [
    NeuralCA(n_grids=4),
    NeuralCA(8, 3, 2, n_grids=5, n_rules=6, burn_in=0, **ANY),
    NeuralCA(6, 3, 3, n_grids=3, n_rules=3, burn_in=2, **ANY),
    NeuralCA(5, 7, 1, n_grids=3, burn_in=1, **ANY),
    NeuralCA(2, 5, 2, n_grids=3, burn_in=1, **ANY),  # one patch, its own neighbour all around
]


def draw(task, batch_size=20, seed=0):
    return task.sample(batch_size, torch.Generator().manual_seed(seed))


def slow_step(task, grid, rule):
    """One grid, one network, with torch's convolutions."""
    first = 9 * task.colours * 4
    kernel = rule[:first].view(task.colours, 3, 3, 4).permute(3, 0, 1, 2)
    second = rule[first : first + 64].view(4, 16).T[:, :, None, None]
    third = rule[first + 64 :].view(16, task.colours).T[:, :, None, None]
    colours = torch.arange(task.colours)[:, None, None]
    one_hot = (grid == colours).double()[None]
    x = F.conv2d(F.pad(one_hot, (1, 1, 1, 1), mode="circular"), kernel)
    return F.conv2d(F.conv2d(x, second).relu(), third)[0].argmax(0)


def slow_grids(task, row):
    """The grids of a sequence, cell by cell, and that its delimiters are where they belong."""
    across = task.grid_size // task.patch
    length = across**2 + 2
    n = task.colours ** (task.patch**2)
    grids = []
    for start in range(0, len(row), length):
        assert (row[start], row[start + length - 1]) == (n, n + 1)
        grid = torch.zeros(task.grid_size, task.grid_size, dtype=torch.int64)
        for place, token in enumerate(row[start + 1 : start + length - 1]):
            assert 0 <= token < n
            for cell in reversed(range(task.patch**2)):
                token, colour = divmod(token, task.colours)
                top, left = (task.patch * part for part in divmod(place, across))
                down, right = divmod(cell, task.patch)
                grid[top + down, left + right] = colour
        grids.append(grid)
    return grids


@pytest.mark.parametrize("task", TASKS_TO_TRY, ids=str)
def test_every_grid_follows_from_the_one_before_by_the_network_of_the_sequence(task):
    batch = draw(task)
    assert batch.tokens.dtype == torch.int64
    assert batch.tokens.shape == (20, task.seq_len)
    length = (task.grid_size // task.patch) ** 2 + 2
    assert task.seq_len == task.n_grids * length
    assert batch.loss_mask.shape == (20, task.seq_len - 1)
    assert not batch.loss_mask[:, : length - 1].any()
    assert batch.loss_mask[:, length - 1 :].all()
    changed = 0
    for row, rule in zip(batch.tokens.tolist(), batch.labels["rule"], strict=True):
        grids = slow_grids(task, row)
        assert len(grids) == task.n_grids
        for before, following in itertools.pairwise(grids):
            assert torch.equal(slow_step(task, before, rule), following)
            changed += not torch.equal(before, following)
    assert changed > 0


@pytest.mark.parametrize("task", TASKS_TO_TRY, ids=str)
def test_its_own_step_reproduces_the_next_grid(task):
    batch = draw(task)
    grids = task.decode(batch.tokens)
    assert grids.shape == (20, task.n_grids, task.grid_size, task.grid_size)
    assert torch.equal(
        grids, torch.stack([torch.stack(slow_grids(task, row)) for row in batch.tokens.tolist()])
    )
    assert torch.equal(task.encode(grids), batch.tokens)
    for t in range(task.n_grids - 1):
        assert torch.equal(task.step(grids[:, t], batch.labels["rule"]), grids[:, t + 1])
    other = task.step(grids[:, 0], batch.labels["rule"].roll(1, 0))
    assert not torch.equal(other, grids[:, 1])


def test_the_example_of_the_docstring_is_cut_as_it_says():
    task = NeuralCA(4, n_grids=2)
    grids = [
        [[1, 0, 0, 3], [0, 2, 2, 2], [3, 3, 0, 0], [1, 0, 0, 2]],
        [[1, 1, 0, 3], [0, 2, 2, 0], [3, 1, 0, 0], [1, 0, 0, 2]],
    ]
    tokens = [10_000, 1002, 322, 3310, 2, 10_001, 10_000, 1102, 320, 3110, 2, 10_001]
    assert task.encode(torch.tensor([grids])).tolist() == [tokens]
    assert task.decode(torch.tensor([tokens])).tolist() == [grids]
    assert task.vocab_size == 10_002


def test_the_published_size_fits_the_published_context():
    task = NeuralCA()
    assert (task.patches, task.vocab_size, task.seq_len) == (36, 10_002, 988)
    assert task.seq_len <= 1024 < task.seq_len + 38


# --- which patches are needed -----------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [
        NeuralCA(8, 4, 2, n_grids=3, burn_in=0, **ANY),
        NeuralCA(4, 4, 1, n_grids=3, burn_in=0, **ANY),
        NeuralCA(4, 4, 2, n_grids=3, burn_in=0, **ANY),
    ],
    ids=str,
)
def test_the_target_marks_the_patches_whose_change_can_change_the_answer(task):
    batch = draw(task, 400)
    rule, length = batch.labels["rule"], task.patches + 2
    begin = task.encode(task.decode(batch.tokens)[:, :1])
    generator = torch.Generator().manual_seed(1)

    def following(tokens):
        return task.encode(task.step(task.decode(tokens)[:, 0], rule)[:, None])

    expected = torch.zeros(task.seq_len - 1, task.seq_len - 1, dtype=torch.bool)
    for key in range(1, length - 1):
        edited = begin.clone()
        edited[:, key] = torch.randint(task.vocab_size - 2, (400,), generator=generator)
        changes = (following(edited) != following(begin)).any(0)
        for g in (1, 2):
            expected[g * length - 1 : (g + 1) * length - 1, (g - 1) * length + key] = changes
    target = task.attention_target()
    assert target.dtype == torch.bool
    assert torch.equal(target, expected)
    assert not target.triu(1).any()


def test_at_the_published_size_nine_patches_are_needed_and_delimiters_need_none():
    counts = NeuralCA(n_grids=2).attention_target().sum(1)
    assert counts.tolist() == [0] * 38 + [9] * 36 + [0]


# --- distributions, filter and seeds ----------------------------------------------------------


def test_weights_have_the_variance_of_their_fan_in():
    rules = NeuralCA(2, 10, n_rules=2000, burn_in=0, **ANY).rules
    assert rules.shape == (2000, 360 + 64 + 160)
    for part, fan_in in zip(rules.split((360, 64, 160), dim=1), (90, 4, 16), strict=True):
        assert part.mean().abs() < 4 / math.sqrt(fan_in * part.numel())
        assert part.var().item() == pytest.approx(1 / fan_in, rel=0.02)


def test_the_first_grid_has_a_random_distribution_over_colours():
    task = NeuralCA(n_grids=2, burn_in=0, n_rules=1, **ANY)
    first = task.decode(draw(task, 3000).tokens)[:, 0].flatten(1)
    shares = F.one_hot(first, 10).double().mean(1)
    assert shares.mean(0).tolist() == pytest.approx([0.1] * 10, rel=0.06)
    p = torch.randn(300_000, 10, generator=torch.Generator().manual_seed(5)).softmax(1)
    counting = (p * (1 - p)).mean() / 144  # variance of a share of 144 cells
    assert shares.var().item() == pytest.approx((p.var() + counting).item(), rel=0.05)
    both = (p**2).sum(1).mean().item()  # two independent cells of a grid have the same colour
    for apart in (1, 12, 100):
        same = (first[:, :-apart] == first[:, apart:]).double().mean().item()
        assert same == pytest.approx(both, rel=0.03)


def test_gzip_ratio_is_the_size_of_the_gzipped_patches():
    task = NeuralCA(n_grids=6, **ANY)
    grids = task.decode(draw(task, 8).tokens)
    for ratio, row in zip(task.gzip_ratio(grids), task.encode(grids).tolist(), strict=True):
        text = io.BytesIO()
        for token in row:
            if token < 10_000:
                text.write(token.to_bytes(4, "little"))
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = compressor.compress(text.getvalue()) + compressor.flush()
        assert ratio.item() == pytest.approx((len(packed) + 18) / (6 * 36 * 4))  # header, trailer


def test_the_filter_keeps_networks_whose_grids_compress_as_asked():
    def ratios(**limits):
        task = NeuralCA(n_grids=10, n_rules=60, **limits)
        return task.gzip_ratio(task.decode(draw(task, 200).tokens))

    everything, high, low = ratios(**ANY), ratios(), ratios(min_ratio=0.0, max_ratio=0.2)
    # Judged on other grids of the same networks, so not every sequence lies in the range.
    assert 0.3 < (everything > 0.5).float().mean() < 0.6
    assert (high > 0.45).float().mean() > 0.9
    assert (low < 0.25).float().mean() > 0.9


def test_a_range_in_which_no_network_falls_is_refused():
    task = NeuralCA(4, 2, n_grids=2, min_ratio=5.0, max_ratio=6.0)
    with pytest.raises(ParameterError, match=r"\(5\.0, 6\.0\) .* Of 1,600 only 0 did"):
        draw(task, 1)
    with pytest.raises(ParameterError, match="widen it"):
        _ = NeuralCA(4, 2, n_grids=2, n_rules=1, min_ratio=5.0, max_ratio=6.0).rules


def test_everything_random_comes_from_the_seeds():
    small = {"grid_size": 6, "n_grids": 3, **ANY}
    for task in (NeuralCA(**small), NeuralCA(**small, n_rules=5)):
        torch.manual_seed(0)
        first = draw(task).tokens
        torch.manual_seed(1)
        again = NeuralCA(**small, n_rules=task.n_rules)
        assert torch.equal(first, draw(again).tokens)
        assert not torch.equal(first, draw(task, seed=1).tokens)
    assert NeuralCA(**small).rules is None
    pool = NeuralCA(**small, n_rules=5)
    assert not torch.equal(pool.rules, NeuralCA(**small, n_rules=5, rule_seed=1).rules)
    used = draw(pool, 100).labels["rule"].unique(dim=0)
    assert torch.equal(used, pool.rules.unique(dim=0))
    assert len(draw(NeuralCA(**small)).labels["rule"].unique(dim=0)) == 20


# --- floor, accuracy, refusals ----------------------------------------------------------------


def test_who_knows_the_network_reaches_the_floor():
    task = NeuralCA(8, 4, 2, n_grids=4, **ANY)
    batch = draw(task)
    logits = torch.zeros(20, task.seq_len - 1, task.vocab_size, dtype=torch.float64)
    grids, rule = task.decode(batch.tokens), batch.labels["rule"]
    length = task.patches + 2
    for g in range(1, task.n_grids):
        answer = task.encode(task.step(grids[:, g - 1], rule)[:, None])
        logits[:, g * length - 1 : (g + 1) * length - 1].scatter_(2, answer[..., None], 60.0)
    assert masked_loss(logits, batch).item() == pytest.approx(task.floor, abs=1e-9)
    assert task.accuracy(logits, batch) == 1.0
    logits[:, length - 1] = logits[:, -1] = 0.0  # a delimiter at either end: not counted
    assert task.accuracy(logits, batch) == 1.0
    logits[:5, length] *= -1  # the first patch of the second grid, in a quarter of the sequences
    assert task.accuracy(logits, batch) == pytest.approx(1 - 1 / 4 / (3 * 16))


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"grid_size": 1}, r"grid_size=1 .* an integer ≥ 2"),
        ({"colours": 1}, r"colours=1 .* an integer ≥ 2"),
        ({"patch": 5}, r"patch=5 .* a divisor of grid_size=12"),
        ({"colours": 18}, r"colours=18 .* at most 17 with patch=2\. .*100,000"),
        ({"n_grids": 1}, r"n_grids=1 .* an integer ≥ 2"),
        ({"n_rules": 0}, r"n_rules=0 .* an integer ≥ 1"),
        ({"burn_in": -1}, r"burn_in=-1 .* an integer ≥ 0"),
        ({"min_ratio": -0.1}, r"min_ratio=-0\.1 .* a number ≥ 0"),
        ({"max_ratio": math.nan}, r"max_ratio=nan .* a number ≥ 0"),
        ({"min_ratio": 0.6, "max_ratio": 0.6}, r"min_ratio=0\.6 .* below max_ratio=0\.6"),
        ({"rule_seed": True}, r"rule_seed=True .* an integer"),
    ],
)
def test_impossible_parameters_are_refused(parameters, says):
    with pytest.raises(ParameterError, match=says):
        NeuralCA(**parameters)


def test_an_empty_batch_is_refused():
    with pytest.raises(ParameterError, match="batch_size=0"):
        draw(NeuralCA(), 0)


def test_the_task_is_registered():
    assert TASKS["neural_ca"] is NeuralCA
    assert make_task("neural_ca", colours=4) == NeuralCA(colours=4)
