"""Time and memory of the token mixers against length, beside attention and the naive recurrences.

    python benchmarks/mixers.py                            # 256 and 2,048 positions: some minutes
    python benchmarks/mixers.py --lengths 256              # half a minute
    python benchmarks/mixers.py --transformers-up-to 2048  # its Mamba at 2,048 too: minutes more

Expected: the chunked recurrences of Gated DeltaNet, RWKV, mLSTM and the linear RNN at least 5 times
as fast as their naive forms (`tests/naive_mixers.py`), Mamba's scan no slower than those of
`transformers` (its path without kernels) and, where it is installed, `mambapy`; the exit status is
1 where one of these fails. Forward and backward, float32, one thread, batch 8, d_model 64, 4 heads
of 16. Naive and ours take turns on the same inputs, after one run of each; the best time of each
counts. Times are CPU time of this process, so that neighbours on the machine disturb less.

"mixer" is the whole layer with its projections, "core" the recurrence alone, both of ours; "naive"
and "ratio" compare with the core. "peak" is what one forward and backward pass of the whole layer
adds to the process, in a fork of its own; the last column is its growth from the length before,
which is the ratio of the lengths where memory is linear.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import multiprocessing.connection
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import naive_mixers as naive

from emergence_lib.models import ModelConfig
from emergence_lib.models.mixers import MIXERS
from emergence_lib.models.mixers.gated_delta import gated_delta_rule
from emergence_lib.models.mixers.mamba import N_STATE, selective_scan
from emergence_lib.models.mixers.mlstm import matrix_memory
from emergence_lib.models.mixers.rwkv import LOG_DECAY, wkv
from emergence_lib.models.mixers.scan import linear_scan

BATCH, D_MODEL, HEADS, D_HEAD = 8, 64, 4, 16
LEAST_RATIO = 5.0
LEAST_SECONDS = 0.2  # of each thing timed: what takes a millisecond needs many repeats

Core = Callable[..., Tensor]
CORES: dict[str, tuple[Core, Core]] = {
    "gated_delta": (gated_delta_rule, naive.gated_delta_rule),
    "rwkv": (wkv, naive.wkv),
    "mlstm": (matrix_memory, naive.matrix_memory),
    "linear_rnn": (linear_scan, naive.linear_scan),
    "mamba": (selective_scan, naive.selective_scan),
}


def core_inputs(name: str, n_pos: int) -> list[Tensor]:
    """Random arguments of a recurrence, of the sizes that the whole layer gives it."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    vector, number = (BATCH, HEADS, n_pos, D_HEAD), (BATCH, HEADS, n_pos)
    inner = (BATCH, n_pos, HEADS * D_HEAD)
    channels, state = (BATCH, n_pos, 2 * D_MODEL), (BATCH, n_pos, N_STATE)
    unit, slow = F.normalize(normal(*vector), dim=-1), F.logsigmoid(3 + normal(*number))
    q, k, v = normal(*vector), normal(*vector), normal(*vector)
    rate = normal(*vector).sigmoid()
    rates = -torch.arange(1.0, N_STATE + 1).repeat(2 * D_MODEL, 1)
    step = 0.1 * normal(*channels).exp()
    arguments = {
        "gated_delta": [q, unit, v, slow, normal(*number).sigmoid()],
        "rwkv": [q, LOG_DECAY * normal(*vector).sigmoid(), k, v, -unit, unit * rate],
        "mlstm": [q, k, v, normal(*number), slow],
        "linear_rnn": [normal(*inner).sigmoid(), normal(*inner)],
        "mamba": [normal(*channels), step, rates, normal(*state), normal(*state)],
    }[name]
    return [x.detach().requires_grad_() for x in arguments]


def layer(name: str, n_pos: int) -> tuple[Core, list[Tensor]]:
    """A whole mixer and its input."""
    config = ModelConfig(1, D_MODEL, HEADS, vocab_size=2, max_pos=n_pos, mixer=name)
    mixer = MIXERS[name](config, 0)
    x = torch.randn(BATCH, n_pos, D_MODEL, generator=torch.Generator().manual_seed(0))

    def call(x: Tensor, *_: Tensor) -> Tensor:
        return mixer(x, attn_bias=None, myopic=False, record=_Nothing())

    return call, [x.requires_grad_(), *mixer.parameters()]


class _Nothing:
    """Records nothing."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def wants(self, *names: str) -> bool:
        return False


def step(function: Core, arguments: Sequence[Tensor]) -> Tensor:
    """One forward and backward pass; the output."""
    out = function(*arguments)
    torch.autograd.grad(out, arguments, torch.ones_like(out))
    return out.detach()


def best_times(functions: Sequence[Core], arguments: Sequence[Tensor], repeats: int) -> list[float]:
    """CPU milliseconds of each, taking turns, the best of the repeats."""
    outs = [step(function, arguments) for function in functions]
    for out in outs[1:]:  # what is compared must be the same thing
        torch.testing.assert_close(out, outs[0], rtol=1e-3, atol=1e-3)
    times: list[list[float]] = [[] for _ in functions]
    while min(map(len, times)) < repeats or min(map(sum, times)) < LEAST_SECONDS:
        for function, own in zip(functions, times, strict=True):
            start = time.process_time()
            step(function, arguments)
            own.append(time.process_time() - start)
    return [1e3 * min(own) for own in times]


def _report_peak(pipe: multiprocessing.connection.Connection, name: str, n_pos: int) -> None:
    unit = 1 if sys.platform == "darwin" else 1024
    step(*layer(name, 16))  # what the libraries allocate once
    function, arguments = layer(name, n_pos)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(function, arguments)
    pipe.send(unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6)


def peak_megabytes(name: str, n_pos: int) -> float:
    """What one pass of the whole layer adds to a process at most."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(sender, name, n_pos))
    process.start()
    peak = receiver.recv()
    process.join()
    return peak


def mambapy_scan(u: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba's scan as `mambapy` computes it, with its parallel scan."""
    from mambapy.pscan import pscan

    decay = (step.unsqueeze(-1) * a).exp()
    states = pscan(decay, step.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1))
    return (states @ c.unsqueeze(-1)).squeeze(-1)


def transformers_scan(u: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba's scan as `transformers` computes it without kernels."""
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    u, step, b, c = (x.transpose(1, 2) for x in (u, step, b, c))
    return mamba_selective_scan(u, step, a, b, c).transpose(1, 2)


def compare_mamba(n_pos: int, transformers_up_to: int, repeats: int) -> bool:
    """Print Mamba's scan beside the public ones; whether it is no slower than any."""
    others: dict[str, Core] = {"mambapy": mambapy_scan, "transformers": transformers_scan}
    if n_pos > transformers_up_to:
        del others["transformers"]
    fast_enough = True
    for other, function in others.items():
        if importlib.util.find_spec(other) is None:
            print(f"{n_pos:6} mamba beside {other}: not installed", flush=True)
            continue
        arguments = core_inputs("mamba", n_pos)
        ours, theirs = best_times([selective_scan, function], arguments, repeats)
        print(f"{n_pos:6} mamba beside {other}: {ours:.0f} ms, theirs {theirs:.0f} ms", flush=True)
        fast_enough &= ours <= theirs
    return fast_enough


def main() -> int:
    """Print a line for each mixer and length; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[256, 2048], metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--transformers-up-to", type=int, default=256, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)

    peaks = {(n, name): peak_megabytes(name, n) for n in options.lengths for name in MIXERS}
    print(f"batch {BATCH}, d_model {D_MODEL}, {HEADS} heads of {D_HEAD}, float32, one thread")
    print("length mixer        mixer ms  of attention   core ms  naive ms  ratio   peak MB  growth")
    missed, before = [], None
    for n_pos in options.lengths:
        attention = math.nan
        for name in MIXERS:
            function, arguments = layer(name, n_pos)
            (whole,) = best_times([function], arguments, options.repeats)
            attention = whole if name == "attention" else attention
            line = f"{n_pos:6} {name:12} {whole:8.1f} {whole / attention:13.2f}"
            if name in CORES:
                core, slow = best_times(CORES[name], core_inputs(name, n_pos), options.repeats)
                line += f" {core:9.1f} {slow:9.1f} {slow / core:6.1f}"
                if name != "mamba" and slow < LEAST_RATIO * core:
                    missed.append(f"{name} at {n_pos}")
            else:
                line += " " * 27
            line += f" {peaks[n_pos, name]:9.0f}"
            if before is not None:
                line += f" {peaks[n_pos, name] / peaks[before, name]:7.1f}"
            print(line, flush=True)
        before = n_pos
    for n_pos in options.lengths:
        if not compare_mamba(n_pos, options.transformers_up_to, options.repeats):
            missed.append(f"mamba at {n_pos}")
    print(f"missed: {', '.join(missed)}" if missed else "all as asked")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
