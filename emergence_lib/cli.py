"""The command line, ``emergence …``: the library's functions with text around them.

Everything heavy is imported inside the command that needs it, so that ``--help`` answers at once.
Exit codes: 0 done, 1 failed on the way, 2 asked for wrongly, 130 interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from emergence_lib.errors import EmergenceError, ParameterError, UnknownNameError

if TYPE_CHECKING:
    from emergence_lib.experiments import Experiment


class Commands(click.Group):
    """A group whose commands report this library's errors as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as interrupt:
                click.echo(str(interrupt) or "Interrupted.", err=True)
                ctx.exit(130)
            except (EmergenceError, OSError) as error:
                if ctx.params["debug"] or isinstance(error, BrokenPipeError):
                    raise
                click.echo(f"Error: {error}", err=True)
                ctx.exit(getattr(error, "exit_code", 1))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"Warning: {message}", err=True)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed on the way, 2 asked for wrongly, 130 interrupted.",
)
@click.version_option(package_name="emergence-companion")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Re-test three papers on how transformers acquire capabilities.

    \b
    emergence build                             make the book, then
    emergence serve                             read it in a browser
    emergence claims                            what was reproduced, with numbers
    emergence status                            what is recorded, what is missing
    emergence sweep sparsity --profile quick    record an experiment's results
    emergence run 02_sparsity -p state_size 12  a notebook, your parameters
    emergence train linear_map -p row_weight 2  one model

    Profiles go from seconds to a GPU: smoke (tests), quick (live in a notebook), cpu (recorded on
    two cores), paper (the papers' sizes). Results are kept under book/results, or under the folder
    named by the environment variable EMERGENCE_RESULTS.
    """


# --- the book ------------------------------------------------------------------------------------


@main.command()
@click.option("--profile", default="quick", show_default=True, help="What the notebooks run live.")
@click.option("--force", is_flag=True, help="Run every notebook again, changed or not.")
def build(profile: str, force: bool) -> None:
    """Build the book, running the notebooks that changed.

    \b
    emergence build
    emergence build --force
    """
    from emergence_lib import book

    _require_profile(profile)
    book.build(profile=profile, force=force)


@main.command()
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
def serve(port: int) -> None:
    """Serve the built book on this computer until Ctrl-C.

    \b
    emergence serve --port 8123
    """
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    from emergence_lib import book

    folder = book.html_folder()
    if not (folder / "index.html").exists():
        raise EmergenceError(f"There is no book in {folder}. Build it first: emergence build")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        advice = "Choose another: emergence serve --port 8123"
        raise EmergenceError(f"Port {port} cannot be used: {error.strerror}. {advice}") from error
    with server, contextlib.suppress(KeyboardInterrupt):
        click.echo(f"The book is at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends)")
        server.serve_forever()


PARAMETER = click.option(
    "-p", "given", type=(str, str), multiple=True, metavar="NAME VALUE", help="Set a parameter."
)


@main.command()
@click.argument("notebook")
@PARAMETER
@click.option("--profile", help="Short for -p profile PROFILE.")
@click.option("--output", type=click.Path(path_type=Path), help="Copy: .ipynb file or folder.")
def run(
    notebook: str, given: Sequence[tuple[str, str]], profile: str | None, output: Path | None
) -> None:
    """Run a notebook, your parameters.

    NOTEBOOK is a name such as 02_sparsity or a path. The original stays as it is.

    \b
    emergence run 02_sparsity -p state_size 12 -p seeds 2
    emergence run notebooks/01_linear_map.ipynb --profile smoke --output out.ipynb
    """
    from emergence_lib import book

    parameters = _once(given)
    if profile is not None:
        parameters["profile"] = profile
    if "profile" in parameters:
        _require_profile(parameters["profile"])
    click.echo(f"Executed copy: {book.run_notebook(notebook, parameters, output=output)}")


# --- experiments and their results ---------------------------------------------------------------


@main.command()
@click.argument("experiment")
@click.option("--profile", required=True, help="smoke, quick, cpu or paper.")
@click.option("--workers", type=click.IntRange(1), help="Points at once.  [default: all cores]")
@click.option(
    "--executor",
    type=click.Choice(["local", "thread"]),
    default="local",
    show_default=True,
    help="Processes of this computer, or threads of this process.",
)
@click.option("--device", default="cpu", show_default=True, help="Where models train: cpu, cuda, …")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many points.")
@click.option(
    "--compact/--no-compact",
    default=True,
    show_default=True,
    help="Merge the finished points into one file at the end.",
)
def sweep(
    experiment: str,
    profile: str,
    workers: int | None,
    executor: str,
    device: str,
    limit: int | None,
    compact: bool,
) -> None:
    """Record the missing points of an EXPERIMENT.

    Points that are recorded are not computed again, so a sweep can be interrupted (Ctrl-C) and
    called again at any time; only the points in flight are lost.

    \b
    emergence sweep sparsity --profile quick
    emergence sweep plateau --profile cpu --workers 4 --limit 20
    """
    from concurrent.futures import ThreadPoolExecutor

    from emergence_lib import executors
    from emergence_lib import sweep as sweeps
    from emergence_lib.provenance import require_device
    from emergence_lib.status import profile_status
    from emergence_lib.store import Store
    from emergence_lib.terminal import duration, sweep_plan

    chosen = _experiment(experiment)
    require_device(device)
    store = Store()
    before = profile_status(chosen, profile, store)
    todo = store.missing(chosen.points(profile))[:limit]
    if todo:
        store.require_writable()  # before a plan that could not be kept
    workers = workers or executors.cores()
    click.echo(sweep_plan(before, len(todo), workers))
    if not todo:
        return
    started = time.monotonic()
    pool = ThreadPoolExecutor(workers) if executor == "thread" else executors.LocalExecutor(workers)
    with pool:
        sweeps.sweep(chosen, todo, store=store, executor=pool, profile=profile, device=device)
    if compact:
        store.compact(chosen.name)
    left = len(store.missing(chosen.points(profile)))
    click.echo(
        f"Done in {duration(time.monotonic() - started)}; {left} missing. "
        "What the results say: emergence claims"
    )


@main.command()
@click.argument("experiment", required=False)
@click.option("--profile", help="Only this profile.")
@click.option("--json", "as_json", is_flag=True, help="For tools.")
def status(experiment: str | None, profile: str | None, as_json: bool) -> None:
    """Show what is recorded, what is missing, and its cost.

    Times are those of one core of the computers that recorded the points.

    \b
    emergence status
    emergence status sparsity --profile cpu
    """
    from emergence_lib.experiments import EXPERIMENTS
    from emergence_lib.status import outside_profiles, profile_status
    from emergence_lib.store import Store
    from emergence_lib.terminal import status_text, wrapped

    chosen = [_experiment(experiment)] if experiment else list(EXPERIMENTS.values())
    store = Store()
    found = [
        profile_status(each, name, store)
        for each in chosen
        for name in ([profile] if profile else each.profiles)
    ]
    outside = {each.name: outside_profiles(each, store) for each in chosen}
    if as_json:
        lines = [each.as_dict() for each in found]
        click.echo(_json({"format": 1, "status": lines, "outside_profiles": outside}))
        return
    for each in chosen:
        click.secho(each.name, bold=True)
        click.echo(wrapped(each.question, _width(), "  ", "  "))
        for line in found:
            if line.experiment == each.name:
                click.echo(status_text(line, _width(), every_cell=experiment is not None))
        if count := outside[each.name]:
            text = f"Outside these profiles: {count} recorded, kept, and read by no page."
            click.echo(wrapped(text, _width(), "  ", "  "))
    click.echo(f"Store: {store.root}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="For tools.")
@click.option("--paper", help="Only the claims of this paper: A, B or C.")
@click.option("--verdict", help="Only claims with this verdict, such as reproduced.")
def claims(as_json: bool, paper: str | None, verdict: str | None) -> None:
    """Show the ledger: each claim of the papers and its verdict.

    Verdicts are computed from the recorded results each time.

    \b
    emergence claims --paper A
    emergence claims --verdict "not reproduced" --json
    """
    from emergence_lib.claims import CLAIMS, PAPERS, ledger
    from emergence_lib.experiments.base import STATUSES
    from emergence_lib.terminal import entry_text, ledger_summary

    if paper is not None and paper.upper() not in PAPERS:
        raise UnknownNameError("paper", paper, PAPERS)
    if verdict is not None and verdict not in STATUSES:
        raise UnknownNameError("verdict", verdict, STATUSES)
    asked = [claim for claim in CLAIMS if paper is None or claim.paper == paper.upper()]
    entries = [e for e in ledger(claims=asked) if verdict in (None, e.verdict.status)]
    if as_json:
        click.echo(_json({"format": 1, "claims": [entry.as_dict() for entry in entries]}))
        return
    for entry in entries:
        click.echo(entry_text(entry, _width()))
    click.echo(ledger_summary(entries))


# --- one model -----------------------------------------------------------------------------------


@main.command()
@click.argument("task")
@PARAMETER
@click.option("--list", "only_list", is_flag=True, help="List the parameters and their defaults.")
@click.option("--device", default="cpu", show_default=True, help="Where the model trains.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="A new folder for trajectory.parquet, model.safetensors and run.json.",
)
def train(
    task: str,
    given: Sequence[tuple[str, str]],
    only_list: bool,
    device: str,
    output: Path | None,
) -> None:
    """Train one model on a TASK.

    A parameter is one of the task, the model or the training; --list shows them all. Unless you say
    otherwise, linear_map has the model and the recipe of the book's experiments: 1 layer, d_model
    128, 8 heads, Muon for the attention matrices and AdamW for the rest.

    \b
    emergence train linear_map --list
    emergence train linear_map -p state_size 8 -p row_weight 2 -p steps 1000
    emergence train linear_map -p n_heads 4 -p lr 3e-4 --output runs/a
    """
    from emergence_lib import single_run
    from emergence_lib.provenance import require_device

    if only_list:
        click.echo(single_run.describe_parameters(task))
        return
    settings = single_run.settings_from_text(task, _once(given))
    require_device(device)
    click.echo(settings.describe())
    result = single_run.train(settings, device=device, folder=output)
    click.echo(result.describe())
    if output is not None:
        click.echo(f"kept in      {output}")


# --- text ----------------------------------------------------------------------------------------


def _experiment(name: str) -> Experiment:
    from emergence_lib.experiments import EXPERIMENTS

    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def _require_profile(name: str) -> None:
    from emergence_lib.experiments import PROFILES

    if name not in PROFILES:
        raise UnknownNameError("profile", name, PROFILES)


def _once(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """``-p`` pairs as a dict, refusing a name given twice."""
    counts = Counter(name for name, _ in given)
    for name, count in counts.items():
        if count > 1:
            raise ParameterError(name, [v for n, v in given if n == name], "given once")
    return dict(given)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 100)


def _json(data: dict[str, Any]) -> str:
    """JSON in which nothing but ASCII appears, so that no terminal encoding can break it."""
    return json.dumps(data, indent=1)


def program() -> NoReturn:
    """`main` as a program of its own, which ends without the libraries' static destructors.

    One of them finds a thread still running now and then, and aborts a process whose work is done.
    """
    code: object = 0
    try:
        main(prog_name="emergence")
    except SystemExit as ended:
        code = ended.code
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by whoever reads it
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    program()
