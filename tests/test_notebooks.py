"""The notebooks as files: paired, clean, parameterised, readable in Colab."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from jupytext.cli import jupytext

from emergence_lib.book.notebooks import (
    default_parameters,
    notebook_names,
    paired_text,
    read_notebook,
    source_path,
    source_text,
    sync,
    typed_parameters,
)
from emergence_lib.errors import BuildError, ParameterError, UnknownNameError

ROOT = Path(__file__).resolve().parents[1]
NAMES = notebook_names(ROOT)
SOURCES = [ROOT / "notebooks" / f"{name}.py" for name in NAMES]
ADDRESS = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))["repository"]["url"]


def cells(source: Path, kind: str) -> list[nbformat.NotebookNode]:
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == kind]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A checkout with nothing but the notebooks."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    (tmp_path / "_toc.yml").touch()
    return tmp_path


def test_there_are_notebooks_and_each_is_one_of_a_pair():
    assert NAMES
    pairs = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert pairs == set(NAMES)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
class TestEveryNotebook:
    def test_is_tracked_with_its_pair(self, source: Path):
        if not (ROOT / ".git").exists():
            pytest.skip("not a git checkout")
        names = [str(p.relative_to(ROOT)) for p in (source, source.with_suffix(".ipynb"))]
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", *names],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )

    def test_is_what_its_source_gives(self, source: Path):
        notebook = read_notebook(source)
        pair = source.with_suffix(".ipynb")
        assert pair.read_text("utf-8") == paired_text(notebook), "run `make sync`"
        assert source.read_text("utf-8") == source_text(notebook), "run `make sync`"

    def test_jupytext_itself_sees_nothing_to_do(self, source: Path, copied: Path):
        text = copied / "notebooks" / source.name
        before = [text.read_text(), text.with_suffix(".ipynb").read_text()]
        for path in (text, text.with_suffix(".ipynb")):
            jupytext(["--sync", str(path)])
        assert [text.read_text(), text.with_suffix(".ipynb").read_text()] == before

    def test_holds_no_outputs_and_nothing_of_the_machine(self, source: Path):
        notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
        nbformat.validate(notebook)
        for cell in cells(source, "code"):
            assert cell.outputs == []
            assert cell.execution_count is None
        assert set(notebook.metadata) == {"jupytext", "kernelspec"}
        assert notebook.metadata.kernelspec.name == "python3"
        assert "jupytext_version" not in source.with_suffix(".ipynb").read_text("utf-8")

    def test_has_one_cell_of_plain_parameters(self, source: Path):
        parameters = default_parameters(read_notebook(source), source.stem)
        assert {"profile", "seeds", "device"} <= set(parameters)

    def test_installs_from_the_one_address(self, source: Path):
        first = cells(source, "code")[0].source
        assert "google.colab" in first
        assert set(re.findall(r"https://[^\s\"']+", first)) == {ADDRESS}

    def test_is_plain_markdown(self, source: Path):
        """Roles, directives and targets are raw text in Colab."""
        for cell in cells(source, "markdown"):
            assert not re.search(r"\{[\w:-]+\}`|^[`:]{3,}\{|^\([\w-]+\)=$", cell.source, re.M)

    def test_labels_and_describes_its_figures(self, source: Path):
        labelled = [cell for cell in cells(source, "code") if "mystnb" in cell.metadata]
        assert labelled
        for cell in labelled:  # a second output would be labelled too
            assert cell.source.endswith("\nplt.show()")
        figures = [cell.metadata.mystnb for cell in labelled]
        for figure in figures:
            assert len(figure["image"]["alt"]) >= 40
            assert figure["figure"]["caption"]
        names = [figure["figure"]["name"] for figure in figures]
        assert len(set(names)) == len(names)


def test_figure_labels_are_used_once_in_the_book():
    labels = [
        cell.metadata.mystnb.figure.name
        for source in SOURCES
        for cell in cells(source, "code")
        if "mystnb" in cell.metadata
    ]
    assert len(set(labels)) == len(labels)


def test_the_repository_has_one_address():
    """Files that cannot read `_config.yml` repeat it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"]["Repository"] == ADDRESS
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["repository-code"] == ADDRESS
    ours = re.compile(r"https://github\.com/[\w-]+/emergence-companion")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "book").glob("*.md")]:
        assert set(ours.findall(path.read_text("utf-8"))) <= {ADDRESS}, path


class TestSync:
    def test_writes_what_is_missing_and_leaves_the_rest(self, copied: Path):
        pair = copied / "notebooks" / f"{NAMES[0]}.ipynb"
        before = pair.read_text()
        pair.unlink()
        assert sync(copied) == [pair]
        assert pair.read_text() == before
        assert sync(copied) == []

    def test_an_edit_changes_the_id_of_its_own_cell_only(self, copied: Path):
        source = copied / "notebooks" / f"{NAMES[0]}.py"
        before = [cell.id for cell in read_notebook(source).cells]
        source.write_text(source.read_text().replace('profile = "quick"', 'profile = "smoke"'))
        after = [cell.id for cell in read_notebook(source).cells]
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1

    def test_refuses_to_lose_edits_made_in_the_pair(self, copied: Path):
        pair = copied / "notebooks" / f"{NAMES[0]}.ipynb"
        source = pair.with_suffix(".py")
        pair.write_text(pair.read_text().replace("quick", "smoke"))
        later = source.stat().st_mtime + 10
        os.utime(pair, (later, later))
        with pytest.raises(BuildError, match="jupytext --sync"):
            sync(copied)


class TestNames:
    @pytest.mark.parametrize(
        "given", ["02_sparsity", "sparsity", "notebooks/02_sparsity.ipynb", "02_sparsity.py"]
    )
    def test_every_way_to_name_a_notebook(self, given: str):
        assert source_path(ROOT, given) == ROOT / "notebooks" / "02_sparsity.py"

    def test_an_unknown_one_gets_the_nearest(self):
        with pytest.raises(UnknownNameError, match="Did you mean '02_sparsity'"):
            source_path(ROOT, "02_sparsty")


class TestParameters:
    NOTEBOOK = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(
                """profile = "quick"
seeds = 2  # runs
lr = 0.1
bias = True
sizes = [1, 2]
x = None""",
                metadata={"tags": ["parameters"]},
            )
        ]
    )

    def typed(self, **given):
        return typed_parameters(self.NOTEBOOK, "nb", given)

    def test_text_takes_the_type_of_the_default(self):
        given = {
            "profile": "12", "seeds": "3", "lr": "1", "bias": "false", "sizes": "[4]", "x": "(1, 2)"
        }  # fmt: skip
        typed = self.typed(**given)
        assert typed == {
            "profile": "12", "seeds": 3, "lr": 1.0, "bias": False, "sizes": [4], "x": (1, 2)
        }  # fmt: skip
        assert type(typed["lr"]) is float

    def test_values_that_are_no_text_pass(self):
        assert self.typed(seeds=3) == {"seeds": 3}

    def test_a_wrong_type_names_parameter_value_and_what_is_allowed(self):
        with pytest.raises(ParameterError, match=r"seeds='many'.*an integer"):
            self.typed(seeds="many")
        with pytest.raises(ParameterError, match=r"sizes='\[1,'.*a Python literal"):
            self.typed(sizes="[1,")

    def test_an_unknown_name_gets_the_nearest(self):
        with pytest.raises(UnknownNameError, match="Did you mean 'seeds'"):
            self.typed(seed="3")

    @pytest.mark.parametrize("tagged", [0, 2])
    def test_there_must_be_one_parameters_cell(self, tagged: int):
        cells = [
            nbformat.v4.new_code_cell("a = 1", metadata={"tags": ["parameters"]})
            for _ in range(tagged)
        ]
        notebook = nbformat.v4.new_notebook(cells=cells)
        with pytest.raises(BuildError, match=f"{tagged} cells tagged 'parameters'"):
            default_parameters(notebook, "nb")

    @pytest.mark.parametrize("line", ["seeds = 1 + len('a')", "import os", "a, b = 1, 2; f()"])
    def test_parameters_must_be_plain(self, line: str):
        cell = nbformat.v4.new_code_cell(line, metadata={"tags": ["parameters"]})
        with pytest.raises(BuildError, match="plain literal"):
            default_parameters(nbformat.v4.new_notebook(cells=[cell]), "nb")
