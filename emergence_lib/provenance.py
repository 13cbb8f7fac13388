"""How a number comes about (code, machine, versions), and where this library keeps things.

torch takes a second to import, so only the functions that ask it do: whoever wants a folder, such
as each process that executes a notebook, needs none.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from emergence_lib.errors import ParameterError

PROVENANCE = ("seconds", "date", "commit", "device", "host", "versions")
"""Columns that every recorded row has beside its experiment's own.

seconds: wall time of the point (float). date: when it finished (ISO 8601, UTC). The others: see
`provenance`.
"""


def checkout() -> Path | None:
    """The source checkout this package runs from; None when it is installed elsewhere."""
    folder = Path(__file__).resolve().parents[1]
    return folder if (folder / "pyproject.toml").exists() else None


def cache_folder() -> Path:
    """Where what can be rebuilt or fetched again is kept; need not exist.

    ``$EMERGENCE_CACHE``, else ``emergence`` in the user's cache folder.
    """
    if named := os.environ.get("EMERGENCE_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "emergence"


def require_device(device: str) -> None:
    """Refuse a device that torch does not know or does not have, before any work.

    Args:
        device: as given to torch: "cpu", "cuda", "cuda:1", …

    Raises:
        ParameterError: no model can train on it here; the message says what torch sees.
    """
    import torch

    try:
        if not isinstance(device, str):  # torch takes 0 for the first GPU, `provenance` does not
            raise TypeError
        torch.ones(1, device=device).cpu()  # "meta" makes tensors too, but without numbers
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ParameterError(
            "device", device, f"one of those torch sees here: {', '.join(_devices())}"
        ) from error


def _devices() -> list[str]:
    """Devices of this machine, as given to torch."""
    import torch

    seen = ["cpu"]
    if torch.cuda.is_available():
        seen += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        seen.append("mps")
    return seen


@cache
def provenance(device: str) -> dict[str, str | None]:
    """What this process computes with; found out once a process.

    Args:
        device: as given to torch: "cpu", "cuda", "cuda:1", …

    Returns:
        commit: short git commit of the library, with "-dirty" where its files differ from that
            commit; None outside a git checkout.
        device: `device`, with the GPU's name.
        host: cores, architecture and processor; never the machine's name.
        versions: of python, torch, numpy and this library.
    """
    packages = ("torch", "numpy", "emergence-companion")
    versions = [f"python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]
    if device.startswith("cuda"):
        import torch

        device = f"{device} {torch.cuda.get_device_name(device)}"
    return {
        "commit": _commit(),
        "device": device,
        "host": f"{os.cpu_count()} cores {platform.machine()} {_processor()}".strip(),
        "versions": ", ".join(versions),
    }


def _commit() -> str | None:
    if (source := checkout()) is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return commit + ("-dirty" if git("status", "--porcelain", "--", "emergence_lib") else "")
    except (OSError, subprocess.CalledProcessError):  # no git here, or a source archive
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
