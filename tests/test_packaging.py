"""The files that say what to install agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINNED = [
    Requirement(line)
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
PINS = {canonicalize_name(pin.name): pin for pin in PINNED}
SELF = "emergence-companion"
UNPINNED = {"stories"}
"""Extras that neither the book nor a test needs."""


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, with and without extras, but not itself or `UNPINNED`."""
    extras = [e for name, e in PROJECT["optional-dependencies"].items() if name not in UNPINNED]
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [r for r in map(Requirement, texts) if canonicalize_name(r.name) != SELF]


def version(pin: Requirement) -> str:
    (specifier,) = pin.specifier
    assert specifier.operator == "=="
    return specifier.version


def test_every_line_of_the_requirements_is_one_exact_public_version():
    assert len(PINS) == len(PINNED)
    for pin in PINNED:
        assert re.fullmatch(r"[\w.]+", version(pin)), pin  # no local suffix, no wildcard
        assert not re.match(r"nvidia|cuda|triton", pin.name), pin


def test_the_pins_lie_within_the_package_s_bounds():
    for requirement in declared():
        assert requirement.specifier.contains(version(PINS[canonicalize_name(requirement.name)]))


def test_the_pins_are_the_whole_closure_and_nothing_else():
    """Followed from pyproject.toml through what is installed, on this Python and system."""
    todo, seen = declared(), set()
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            needs = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            raise AssertionError(f"{requirement} is needed and not installed") from None
        extras = ["", *requirement.extras]
        todo += [
            need
            for need in map(Requirement, needs)
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras)
        ]
    cuda = re.compile(r"nvidia|cuda|triton")  # pinned by a CUDA build of torch itself
    needed = {name for name, _ in seen if not cuda.match(name)}
    here = {n for n, pin in PINS.items() if pin.marker is None or pin.marker.evaluate()}
    assert needed - here == set()
    assert here - needed == set()


def test_the_package_itself_does_not_pin():
    for text in PROJECT["dependencies"]:
        assert all(s.operator == ">=" for s in Requirement(text).specifier), text


def test_binder_has_every_dependency_within_the_bounds():
    environment = yaml.safe_load((ROOT / "binder" / "environment.yml").read_text("utf-8"))
    listed = {re.split(r"[<>=]", line)[0]: line for line in environment["dependencies"]}
    conda_name = {"torch": "pytorch-cpu"}
    for text in PROJECT["dependencies"]:
        name = conda_name.get(Requirement(text).name, Requirement(text).name)
        assert listed[name].removeprefix(name) == str(Requirement(text).specifier)


def test_one_version_and_one_address_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert citation["version"] == PROJECT["version"]
    assert re.findall(r"^## ([\d.]+)", changelog, re.MULTILINE)[0] == PROJECT["version"]
    newest = re.findall(r"^## [\d.]+ \((.+)\)", changelog, re.MULTILINE)[0]
    assert citation.get("date-released", "unreleased") == newest
    address = config["repository"]["url"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"] == address
    assert citation["authors"] == [{"name": PROJECT["authors"][0]["name"]}]
    assert PROJECT["authors"][0]["name"] in (ROOT / "LICENSE").read_text("utf-8")


def test_what_must_be_executable_is_and_parses():
    for script in (".ci/run", "binder/postBuild"):
        assert os.access(ROOT / script, os.X_OK)
        subprocess.run(["bash", "-n", ROOT / script], check=True)
