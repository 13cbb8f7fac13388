"""Building a small book: what runs again and when, and how each kind of failure is told.

The whole book is built in test_built_html.py; here are two trivial notebooks over a library of two
modules, in a folder whose name has spaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
import yaml
from click.testing import CliRunner
from filelock import FileLock

from emergence_lib.book import build, check, notebooks, run_notebook
from emergence_lib.book.dependencies import library_files, notebook_key, recorded_results
from emergence_lib.book.docstrings import plain_to_rst
from emergence_lib.book.execute import executed_path, strip_volatile
from emergence_lib.book.stage import notebook_problems, toc_pages
from emergence_lib.cli import main
from emergence_lib.errors import BuildError, ParameterError, UnknownNameError

ROOT = Path(__file__).resolve().parents[1]
ALT = "A straight line that rises from zero to one, for the tests."

NOTEBOOK = """\
# %% [markdown]
# # {title}
#
# See [a paper](../book/references.md#someone2026), [the start](../book/intro.md) and
# [the code](../emergence_lib/{module}.py).

# %% tags=["parameters"]
profile = "quick"
seeds = 2

# %%
import os

import matplotlib.pyplot as plt

from emergence_lib.{module} import value

assert os.environ["OMP_NUM_THREADS"] == "1"
print("value", value, profile, seeds)

# %% mystnb={figure}
plt.plot([0, 1])
plt.show()
"""


def make_book(root: Path) -> Path:
    """A checkout with two notebooks, two pages, and the real book's configuration."""
    files = {
        "emergence_lib/__init__.py": "",
        "emergence_lib/alpha.py": "from emergence_lib.shared import value\n",
        "emergence_lib/beta.py": "value = 2\n",
        "emergence_lib/shared.py": "value = 1\n",
        "book/intro.md": "# Start\n\nSee {numref}`fig-alpha`.\n\n<!-- generated: executions -->\n",
        "book/references.md": "# References\n\n```{bibliography}\n:all:\n```\n",
        "book/references.bib": "@misc{someone2026, title={A}, author={One, Some}, year={2026}}\n",
        "_toc.yml": "format: jb-book\nroot: book/intro\nchapters:\n- file: notebooks/01_alpha\n"
        "- file: notebooks/02_beta\n- file: book/references\n",
    }
    for number, module in enumerate(("alpha", "beta"), 1):
        figure = {"figure": {"caption": "A line.", "name": f"fig-{module}"}, "image": {"alt": ALT}}
        text = NOTEBOOK.format(title=module.title(), module=module, figure=json.dumps(figure))
        files[f"notebooks/0{number}_{module}.py"] = text
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(ROOT / "notebooks" / "jupytext.toml", root / "notebooks")
    shutil.copytree(ROOT / "book" / "_static", root / "book" / "_static")
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    # The small library has no docstrings to show, and no extension that shows them.
    config["sphinx"]["config"]["extensions"].remove("emergence_lib.book.docstrings")
    (root / "_config.yml").write_text(yaml.safe_dump(config))
    return root


@pytest.fixture(autouse=True)
def _no_recorded_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EMERGENCE_RESULTS", str(tmp_path / "results"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small book that was not built yet."""
    return make_book(tmp_path / "a small book")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_book_from_nothing_and_what_runs_again_after_each_edit(small: Path, capsys):
    """One test, because each step needs the book that the step before it left."""

    def executed() -> set[str]:
        html = build(root=small)
        printed = capsys.readouterr().out
        assert f"The book: {html / 'index.html'}" in printed
        assert (html / "index.html").exists()
        ran = set(re.findall(r"^(\w+): executed in [\d.]+ s, peak \d+ MB$", printed, re.M))
        reused = set(re.findall(r"^(\w+): unchanged, reused$", printed, re.M))
        assert ran | reused == {"01_alpha", "02_beta"}
        assert not ran & reused
        return ran

    assert executed() == {"01_alpha", "02_beta"}
    page = (small / "_build/html/notebooks/01_alpha.html").read_text()
    assert "value 1 quick 2" in page
    assert f'alt="{ALT}"' in page
    assert "blob/main/emergence_lib/alpha.py" in page  # no page, so it is read in the repository
    assert 'href="../book/references.html#id' in page  # the citation
    assert not list((small / "_build" / "failed").iterdir())
    kept = nbformat.read(executed_path(small, "01_alpha"), as_version=4)
    assert strip_volatile(nbformat.from_dict(kept)) == kept
    assert str(small) not in str(kept)

    edit(small / "book" / "intro.md", "# Start", "# Begin")
    assert executed() == set()
    assert "Begin" in (small / "_build/html/book/intro.html").read_text()

    edit(small / "emergence_lib" / "shared.py", "1", "7")  # alpha imports it, beta does not
    assert executed() == {"01_alpha"}
    assert "value 7" in (small / "_build/html/notebooks/01_alpha.html").read_text()

    edit(small / "notebooks" / "02_beta.py", "seeds = 2", "seeds = 3")
    assert executed() == {"02_beta"}
    assert "seeds = 3" in (small / "notebooks" / "02_beta.ipynb").read_text()

    executed_path(small, "02_beta").unlink()
    assert executed() == {"02_beta"}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small book that was built, for tests that put everything back."""
    root = make_book(tmp_path_factory.mktemp("failures") / "a small book")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMERGENCE_RESULTS", str(root / "results"))
        build(root=root)
    return root


class TestAFailedBuild:
    """Exit code, message, and the last good book stays."""

    @pytest.fixture
    def fails(self, good: Path, monkeypatch: pytest.MonkeyPatch):
        """``fails(file, old, new)`` builds with an edit, which it takes back; gives the message."""
        monkeypatch.setattr(notebooks, "checkout", lambda: good)

        def fails(name: str, old: str, new: str, times: int = 1) -> str:
            before, marker = (good / name).read_text(), good / "_build" / "html" / "marker"
            marker.touch()
            edit(good / name, old, new)
            try:
                for _ in range(times):
                    result = CliRunner().invoke(main, ["build"])
                    assert result.exit_code == 1, result.output
            finally:
                (good / name).write_text(before)
            assert marker.exists()
            return result.output

        return fails

    def test_failing_cell(self, fails, good: Path):
        message = fails("notebooks/01_alpha.py", "print(", "raise ValueError('no such luck')  # ")
        assert re.search(r"01_alpha, cell 3 \('import os'\): ValueError: no such luck", message)
        kept = good / "_build" / "failed" / "01_alpha.ipynb"
        assert str(kept) in message
        assert "no such luck" in kept.read_text()

    def test_dead_kernel_and_failing_cell_at_once_name_both(self, fails, good: Path):
        before = (good / "emergence_lib" / "shared.py").read_text()
        (good / "emergence_lib" / "shared.py").write_text("import os\nos._exit(1)\n")
        try:
            message = fails("emergence_lib/beta.py", "value = 2", "value = 1 / 0")
        finally:
            (good / "emergence_lib" / "shared.py").write_text(before)
        assert "01_alpha, cell 3 ('import os'): the kernel died" in message
        assert "02_beta, cell 3 ('import os'): ZeroDivisionError" in message

    def test_a_warning_fails_every_time_not_only_the_first(self, fails):
        message = fails("book/intro.md", "fig-alpha", "fig-omega", times=2)
        assert re.search(r"book/intro.md:3: WARNING: .*fig-omega", message)

    def test_broken_link_and_missing_description(self, fails):
        message = fails("book/intro.md", "# Start", "# Start\n\n<a href='gone.html'>x</a>\n")
        assert "book/intro: the link gone.html leads nowhere" in message

    def test_page_without_a_source(self, fails):
        message = fails("_toc.yml", "book/references", "book/reverences")
        assert "_toc.yml names book/reverences, which has no source" in message
        assert "book/references is not in _toc.yml" in message

    def test_unknown_generated_text(self, good: Path, monkeypatch: pytest.MonkeyPatch):
        before = (good / "book" / "intro.md").read_text()
        edit(good / "book" / "intro.md", "executions", "execution")
        with pytest.raises(UnknownNameError, match="Did you mean 'executions'"):
            build(root=good)
        (good / "book" / "intro.md").write_text(before)

    def test_text_on_standard_error(self, fails):
        message = fails("notebooks/01_alpha.py", "print(", "__import__('warnings').warn('hm')#")
        assert "01_alpha, cell 3 wrote to standard error" in message

    def test_another_build_running(self, good: Path):
        with (
            FileLock(good / "_build" / ".lock"),
            pytest.raises(BuildError, match="Another build is running"),
        ):
            build(root=good)


class TestRunNotebook:
    def test_typed_values_reach_the_notebook(self, small: Path, tmp_path: Path):
        output = run_notebook("alpha", {"seeds": "5"}, tmp_path / "new folder", root=small)
        assert output == tmp_path / "new folder" / "01_alpha.ipynb"
        notebook = nbformat.read(output, as_version=4)
        assert "value 1 quick 5" in str(notebook)
        assert any("injected-parameters" in c.metadata.get("tags", []) for c in notebook.cells)

    def test_wrong_requests_start_no_kernel(self, small: Path):
        with pytest.raises(UnknownNameError, match="01_alpha"):
            run_notebook("alhpa", {}, root=small)
        with pytest.raises(UnknownNameError, match="Did you mean 'seeds'"):
            run_notebook("alpha", {"sedes": "5"}, root=small)
        with pytest.raises(ParameterError, match="seeds='x'"):
            run_notebook("alpha", {"seeds": "x"}, root=small)
        assert not (small / "_build").exists()

    def test_a_cell_that_runs_too_long_is_stopped_and_named(self, small: Path, monkeypatch):
        """In this process: a worker would not see the shorter limit."""
        from emergence_lib.book import execute

        monkeypatch.setattr(execute, "CELL_SECONDS", 2)
        monkeypatch.setenv("PYTHONPATH", "")
        edit(small / "notebooks" / "01_alpha.py", "import os", "import os, time; time.sleep(60)")
        with pytest.raises(BuildError, match=r"cell 3 .*: it ran longer than 2 s and was stopped"):
            execute._execute("01_alpha", {}, small)


class TestDependencies:
    def test_the_graph_covers_what_python_really_imports(self):
        """Against the modules that importing a real module loads, in a fresh interpreter."""
        code = """
            import sys, emergence_lib.experiments.sparsity
            ours = [m for n, m in sys.modules.items() if n.startswith("emergence_lib")]
            print(*(m.__file__ for m in ours), sep="\\n")
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        loaded = {Path(name) for name in done.stdout.splitlines()}
        found = set(library_files("from emergence_lib.experiments import sparsity", ROOT))
        assert loaded <= found
        assert ROOT / "emergence_lib" / "cli.py" not in found

    def test_relative_imports_and_functions_that_import(self, tmp_path: Path):
        package = tmp_path / "emergence_lib" / "sub"
        package.mkdir(parents=True)
        for name, text in {
            "../__init__.py": "",
            "../top.py": "def f():\n    from .sub import deep\n",
            "__init__.py": "from . import near\n",
            "near.py": "from ..other import thing\n",
            "deep.py": "NAME = 'table.toml'\n",
            "table.toml": "",
            "../other.py": "",
            "../unused.py": "",
        }.items():
            (package / name).write_text(text)
        found = library_files("import emergence_lib.top", tmp_path)
        names = {str(path.relative_to(tmp_path / "emergence_lib")) for path in found}
        package_files = {"sub/__init__.py", "sub/near.py", "sub/deep.py", "sub/table.toml"}
        assert names == {"__init__.py", "top.py", "other.py"} | package_files

    def test_results_count_when_the_notebook_names_their_experiment(self, tmp_path: Path):
        (tmp_path / "sparsity.parquet").write_bytes(b"1")
        (tmp_path / "plateau.parquet").write_bytes(b"1")
        (tmp_path / "points" / "plateau").mkdir(parents=True)
        (tmp_path / "points" / "plateau" / "ab.json").touch()
        by_import = recorded_results("from emergence_lib.experiments import plateau", tmp_path)
        assert set(by_import) == {"plateau.parquet", "points/plateau"}
        assert set(recorded_results('rows("sparsity")', tmp_path)) == {"sparsity.parquet"}
        assert recorded_results("'a long plateau'", tmp_path) == {}
        (tmp_path / "points" / "plateau" / "cd.json").touch()
        assert recorded_results("import plateau", tmp_path) != by_import

    def test_every_part_changes_the_key(self, small: Path, tmp_path: Path):
        def key(**parameters) -> str:
            source = small / "notebooks" / "01_alpha.py"
            return notebook_key(source, parameters, small, tmp_path / "results")

        keys = [key(), key(profile="smoke")]
        edit(small / "emergence_lib" / "shared.py", "1", "2")
        keys.append(key())
        edit(small / "notebooks" / "01_alpha.py", "seeds = 2", "seeds = 3")
        keys.append(key())
        assert len(set(keys)) == 4
        (small / "emergence_lib" / "beta.py").write_text("value = 9")
        assert key() == keys[-1]


class TestChecks:
    """Each fault alone, on pages written by hand."""

    CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())

    def problems(self, tmp_path: Path, body: str, **others: str) -> list[str]:
        html = tmp_path / "html"
        html.mkdir()
        (html / "page.html").write_text(f"<html><body><article>{body}</article></body></html>")
        for name, text in others.items():
            (html / f"{name}.html").write_text(text)
        return check.problems(html, ["page"], self.CONFIG, tmp_path)

    @pytest.mark.parametrize(
        "body",
        [
            "<a href='other.html#there'>x</a>",
            "<a href='#here'>x</a><p id='here'></p>",
            "<a href='https://example.org/'>x</a>",
            f"<img alt='{ALT}' src='data:image/png;base64,AA'>",
            "<a href='mailto:a@example.org'>x</a>",
        ],
    )
    def test_good(self, tmp_path: Path, body: str):
        assert self.problems(tmp_path, body, other="<p id='there'></p>") == []

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("<a href='gone.html'>x</a>", "leads nowhere"),
            ("<a href='other.html#gone'>x</a>", "anchor that is not there"),
            ("<a href='#gone'>x</a>", "anchor that is not there"),
            ("<a href='../../etc/passwd'>x</a>", "leaves the book"),
            (f"<img alt='{ALT}' src='gone.png'>", "leads nowhere"),
            ("<img src='data:image/png;base64,AA'>", "alternative text ''"),
            ("<img alt='../_images/0a1b.png' src='data:image/png;base64,AA'>", "at least 40"),
            ("<script src='https://example.org/a.js'></script>", "fetches https://example.org"),
            ("<link rel='stylesheet' href='//example.org/a.css'>", "fetches //example.org"),
            ("<p>By The Jupyter Book community</p>", "default of the template"),
            ("<p>© Copyright 2023.</p>", "default of the template"),
            ("<pre>100%|██████████| 5/5 [00:01&lt;00:00, 4.9it/s]</pre>", "progress bar"),
        ],
    )
    def test_bad(self, tmp_path: Path, body: str, message: str):
        (problem,) = self.problems(tmp_path, body, other="<p id='there'></p>")
        assert problem.startswith("page: ")
        assert message in problem

    def test_a_path_of_the_machine(self, tmp_path: Path):
        (problem,) = self.problems(tmp_path, f"<pre>{tmp_path}/x.py</pre>")
        assert "path of this machine" in problem

    def test_a_missing_page(self, tmp_path: Path):
        assert check.problems(tmp_path, ["gone"], self.CONFIG, tmp_path) == [
            "gone: the page is missing from the built book"
        ]

    def test_a_stylesheet_that_fetches(self, tmp_path: Path):
        (tmp_path / "a.css").write_text("@import 'https://example.org/b.css'; a{background:url(c)}")
        (problem,) = check.problems(tmp_path, [], self.CONFIG, tmp_path)
        assert "fetches https://example.org/b.css" in problem

    def test_launch_buttons(self, tmp_path: Path):
        (tmp_path / "notebooks").mkdir()
        (tmp_path / "notebooks" / "01_a.html").write_text("<article></article>")
        found = check.problems(tmp_path, ["notebooks/01_a"], self.CONFIG, tmp_path)
        assert [re.search(r"Colab|Binder|make sync", p)[0] for p in found] == [
            "Colab", "Binder", "make sync"
        ]  # fmt: skip

    def test_outputs_that_must_not_reach_a_page(self):
        v4 = nbformat.v4
        outputs = [
            v4.new_output("stream", name="stderr", text="UserWarning"),
            v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}}),
            v4.new_output("stream", name="stdout", text="fine"),
        ]
        notebook = v4.new_notebook(
            cells=[v4.new_code_cell("x", outputs=outputs)], metadata={"widgets": {}}
        )
        assert len(notebook_problems("nb", notebook)) == 3

    def test_a_label_belongs_to_one_figure(self):
        v4 = nbformat.v4
        figure = v4.new_output("display_data", {"image/png": "AA"})
        text = v4.new_output("execute_result", {"text/markdown": "A sentence."})
        for outputs, n_problems in (([figure], 0), ([figure, text], 1), ([], 1)):
            cell = v4.new_code_cell("x", outputs=outputs, metadata={"mystnb": {"figure": {}}})
            assert len(notebook_problems("nb", v4.new_notebook(cells=[cell]))) == n_problems


class TestDocstrings:
    def test_is_shown_as_it_stands(self):
        lines = ["Sets `x` from **changes, a|b and d_.", "", "    a ─► b", "", "Then more."]
        assert plain_to_rst(lines) == [
            r"Sets ``x`` from \*\*changes, a\|b and d\_.",
            "",
            ".. code-block:: text",
            "",
            "    a ─► b",
            "",
            "Then more.",
        ]

    def test_leaves_sections_to_napoleon(self):
        lines = [
            "Does.",
            "",
            "Args:",
            "    a: one `b`,",
            "        more.",
            "",
            "Raises:",
            "    E: x.",
        ]
        assert plain_to_rst(lines) == [line.replace("`b`", "``b``") for line in lines]


def test_the_toc_and_the_sources_agree():
    assert len(toc_pages(ROOT)) == len(set(toc_pages(ROOT)))


def test_make_knows_its_targets_and_refuses_an_old_python(small: Path):
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, small)

    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")
        }
        return subprocess.run(
            ["make", *arguments], cwd=small, capture_output=True, text=True, env=env
        )

    described = re.findall(r"^make (\w+)\t", make("help").stdout, re.M)
    assert described == ["book", "test", "sync", "clean", "help"]
    plan = make("-n", "book").stdout
    assert plan.index("-m venv .venv") < plan.index("-r requirements.txt") < plan.index("cli build")
    refused = make("book", "PYTHON=")
    assert refused.returncode != 0
    assert "Python 3.11, 3.12 or 3.13 is needed" in refused.stderr
    (small / ".venv").mkdir()
    (small / ".venv" / "installed").touch()
    assert "pip install" not in make("-n", "book").stdout
    later = (small / ".venv" / "installed").stat().st_mtime + 10
    os.utime(small / "requirements.txt", (later, later))
    assert "pip install" in make("-n", "book").stdout
