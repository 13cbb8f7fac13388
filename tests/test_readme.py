"""What the README promises exists: every command parses, path resolves, snippet runs, number holds.

The pages of the book are held to the same where they name commands, modules or files.
"""

from __future__ import annotations

import importlib
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from papermill.cli import papermill as papermill_command
from readme_values import recorded_values, with_values

from emergence_lib import single_run
from emergence_lib.book.notebooks import read_notebook, source_path, typed_parameters
from emergence_lib.cli import main
from emergence_lib.experiments import EXPERIMENTS
from emergence_lib.tasks import LinearMap

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
REPOSITORY = CONFIG["repository"]["url"]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "book").glob("*.md")),
]
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
MAKE_TARGETS = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
MADE_BY_COMMANDS = {".venv", "_build"}
TOP_LEVEL = {path.name for path in ROOT.iterdir()} - MADE_BY_COMMANDS


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Words of every command line in bash blocks and in inline code."""
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    starts = ("emergence ", "make ", "python tests/")
    lines += [code for code in re.findall(r"`([^`\n]+)`", prose) if code.startswith(starts)]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check(words: list[str]) -> None:
    """Assert that a documented command would do what its line says, short of doing it."""
    program, *arguments = words
    if program == "make":
        assert set(arguments) <= MAKE_TARGETS
    elif program == "emergence":
        check_emergence(arguments)
    elif program == "papermill":
        check_papermill(arguments)
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    elif program == "git":
        assert arguments == ["clone", REPOSITORY]
    elif program == "cd":
        assert arguments == [REPOSITORY.rpartition("/")[2]]
    elif program == "source":
        assert arguments == [".venv/bin/activate"]
        assert re.search(r"^VENV *\??:?= *\.venv$", MAKEFILE, re.MULTILINE)
    elif program == "jupytext":
        assert arguments[0] == "--sync"
    else:
        raise AssertionError(f"no check for the command {shlex.join(words)!r}")


def check_emergence(arguments: list[str]) -> None:
    """Parse with the real command, then resolve the names that it would look up."""
    name, *options = arguments
    if not options:  # named in prose, not called
        assert name in main.commands
        return
    with main.commands[name].make_context(name, options) as context:
        given = context.params
    if name == "sweep":
        # a page may say NAME or EXPERIMENT where the reader is to put one
        experiment = given["experiment"]
        assert experiment.isupper() or given["profile"] in EXPERIMENTS[experiment].profiles
    elif name == "run":
        check_notebook(given["notebook"], dict(given["given"]))
    elif name == "train" and not given["only_list"]:
        single_run.settings_from_text(given["task"], dict(given["given"]))


def check_papermill(arguments: list[str]) -> None:
    with papermill_command.make_context("papermill", list(arguments)) as context:
        given = context.params
    assert (ROOT / given["notebook_path"]).is_file()
    check_notebook(given["notebook_path"], dict(given["parameters"]))


def check_notebook(name: str, given: dict[str, str]) -> None:
    source = source_path(ROOT, name)
    typed_parameters(read_notebook(source), source.stem, given)


def test_the_checks_refuse_what_does_not_exist():
    for line in (
        "make bok",
        "emergence bild",
        "emergence sweep sparsity --profil cpu",
        "emergence sweep sparsity --profile huge",
        "emergence sweep sparsty --profile cpu",
        "emergence run 02_sparsity -p state_sise 12",
        "emergence train linear_map -p row_weight 17",
        "papermill notebooks/99_none.ipynb out.ipynb",
        "git clone https://example.org/other",
        "rm -rf /",
    ):
        with pytest.raises(BaseException):  # noqa: B017, PT011 - click exits, subprocess raises, …
            check(shlex.split(line))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_command_is_one_that_exists(page):
    for words in commands(page.read_text("utf-8")):
        if "…" not in words:
            check(words)


def test_make_accepts_the_targets_of_the_readme():
    named = sorted({word for w in commands(README) if w[0] == "make" for word in w[1:]})
    plan = ["make", "--dry-run", f"PYTHON={sys.executable}", *named]
    assert subprocess.run(plan, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_the_readme_names_the_commands_a_newcomer_needs():
    named = {" ".join(words[:2]) for words in commands(README)}
    assert named >= {"make book", "make test"}
    assert named >= {f"emergence {name}" for name in ("run", "sweep", "claims", "status", "train")}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_link_to_a_file_resolves(page):
    for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_path_and_module_in_code_resolves(page):
    for code in re.findall(r"`([^`\n]+)`", page.read_text("utf-8")):
        if re.fullmatch(r"emergence_lib(\.\w+)+(\(\w*\))?", code):
            resolve(code.partition("(")[0])
        elif re.fullmatch(r"[\w.-]+(/[\w.-]+)*", code) and "NAME" not in code and "NN_" not in code:
            top = code.partition("/")[0]
            if top in TOP_LEVEL:
                assert (ROOT / code).exists() or code == "book/results", code


def resolve(dotted: str) -> object:
    """The module, function or class of a dotted name."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(dotted)


SNIPPETS = [
    pytest.param(code, id=f"{name}-{number}")
    for page, name in zip(PAGES, PAGE_IDS, strict=True)
    for number, code in enumerate(blocks(page.read_text("utf-8"), "python"))
    if "import" in code  # the others show what not to do, or are fragments
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_every_python_snippet_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if " of " in printed:  # the README's: final loss of floor
        loss, floor = map(float, printed.split(" of "))
        assert floor < loss < math.log(2)


def test_the_cheap_commands_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.setenv("EMERGENCE_RESULTS", str(tmp_path))
    cheap = [
        w[1:]
        for w in commands(README)
        if w[:2] in (["emergence", "claims"], ["emergence", "status"])
    ]
    cheap.append(["train", "linear_map", "--list"])
    assert len(cheap) >= 4
    for arguments in cheap:
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output


def test_colab_links_open_tracked_notebooks_of_the_configured_repository():
    links = re.findall(r"\((https://colab[^)]+)\)", README)
    owner = REPOSITORY.removeprefix("https://github.com/")
    prefix = f"{CONFIG['launch_buttons']['colab_url']}/github/{owner}/blob/"
    assert len(links) == len(list((ROOT / "notebooks").glob("*.py")))
    for link in links:
        branch, _, path = link.removeprefix(prefix).partition("/")
        assert branch == CONFIG["repository"]["branch"]
        assert (ROOT / path).suffix == ".ipynb"
        assert (ROOT / path).is_file()


def test_the_figure_is_a_picture_with_a_description():
    (alt, path), *more = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README)
    assert not more
    assert len(alt) >= 40
    assert (ROOT / path).read_bytes().startswith(b"\x89PNG")


def test_the_floors_are_those_of_the_task():
    (sentence,) = re.findall(r"The floor is .*?0\.6931", README, re.DOTALL)
    numbers = [float(x) for x in re.findall(r"0\.\d{4}", sentence)]
    floors = [round(LinearMap(size, 1).floor, 4) for size in (8, 16, 32)]
    assert numbers == [*floors, round(math.log(2), 4)]


def test_the_recorded_values_are_those_of_the_store():
    assert with_values(README, recorded_values()) == README, (
        "stale: python tests/readme_values.py writes it"
    )
