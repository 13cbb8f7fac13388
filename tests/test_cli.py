"""The command line as a stranger meets it: help, messages, exit codes, files."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest
import torch
from click.testing import CliRunner
from fake_experiments import FakeGrid, area, make, odd_fails

from emergence_lib import book, store, sweep
from emergence_lib.cli import main
from emergence_lib.errors import BuildError
from emergence_lib.experiments import EXPERIMENTS, PROFILES
from emergence_lib.store import Store

COMMANDS = sorted(main.commands)
CHECKOUT = Path(__file__).parents[1]
NOTEBOOK = "02_sparsity"
TINY = shlex.split(
    "-p state_size 3 -p row_weight 1 -p d_model 16 -p n_heads 2 -p steps 20 -p eval_every 10"
)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """An empty results folder, which subprocesses inherit."""
    torch.set_num_threads(1)
    folder = tmp_path / "results"
    monkeypatch.setenv("EMERGENCE_RESULTS", str(folder))
    return folder


@pytest.fixture
def fake(monkeypatch):
    profiles = {"smoke": (FakeGrid(2),), "cpu": (FakeGrid(3), FakeGrid(3, width=7))}
    experiment = dataclasses.replace(make(area), profiles=profiles, judges={})
    monkeypatch.setitem(EXPERIMENTS, "fake", experiment)
    return experiment


def call(*args, columns=80):
    """Run in this process; an exception that nothing caught is a failure of the test."""
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [str(a) for a in args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*args, code=2):
    """The one line on stderr of a call that must end with `code`."""
    result = call(*args)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def process(*args, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "emergence_lib.cli", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"},
        **options,
    )


# --- help ----------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_nothing_heavy():
    script = (
        "import sys; from emergence_lib.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print({'torch', 'pandas', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):  # the fastest of three: other tests run at the same time
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        seconds.append(time.monotonic() - start)
        assert (done.returncode, done.stderr.strip()) == (0, "set()")
    assert min(seconds) < 1.5
    assert "emergence sweep sparsity --profile quick" in done.stdout


def test_the_module_can_be_run_and_knows_its_version():
    running = process("--version")
    output, _ = running.communicate(timeout=60)
    assert (running.returncode, output.split()[-1]) == (0, "0.1.0")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command):
    for option in ("--help", "-h"):
        result = call(command, option)
        assert result.exit_code == 0
        assert re.search(rf"^  emergence {command}", result.stdout, re.M)
        assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 120])
def test_the_overview_is_not_cut_off(width):
    overview = call("--help", columns=width).stdout
    assert "..." not in overview.split("Commands:")[1]
    assert all(f"\n  {command} " in overview for command in COMMANDS)
    assert max(map(len, overview.splitlines())) <= width


def examples():
    texts = [main.help, *(command.help for command in main.commands.values())]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return sorted({re.split(r"  +", line)[0] for line in lines if line.startswith("emergence ")})


@pytest.mark.parametrize("example", examples())
def test_every_example_in_the_help_is_a_possible_call(example):
    _, name, *args = shlex.split(example)
    main.commands[name].make_context(name, args)


def test_a_command_or_option_that_does_not_exist_is_answered_with_the_nearest():
    assert "Did you mean 'sweep'" in refused("sweeep")
    assert "Did you mean" in refused("claims", "--papr", "A")
    assert "--profile" in refused("sweep", "sparsity")


# --- claims --------------------------------------------------------------------------------------


def test_claims_lists_all_with_a_summary_that_adds_up():
    result = call("claims")
    ids = re.findall(r"^([ABC]-\d+) ", result.stdout, re.M)
    assert (result.exit_code, len(ids), len(set(ids))) == (0, 43, 43)
    assert result.stdout.splitlines()[-1] == "43 claims: 43 not tested here."


@pytest.mark.parametrize("columns", [80, 120])
def test_claims_and_status_fit_the_terminal(columns):
    for command in ("claims", "status"):
        lines = call(command, columns=columns).stdout.splitlines()
        assert max(len(line) for line in lines if "Store:" not in line) <= columns


def test_claims_can_be_filtered_and_read_by_tools():
    data = json.loads(call("claims", "--paper", "b", "--json").stdout)
    assert data["format"] == 1
    assert [claim["id"] for claim in data["claims"]] == [f"B-{i}" for i in range(1, 15)]
    assert {"id", "paper", "statement", "verdict", "evidence", "n", "profile"} <= set(
        data["claims"][0]
    )
    nothing = call("claims", "--verdict", "reproduced", "--json")
    assert (nothing.exit_code, json.loads(nothing.stdout)["claims"]) == (0, [])
    assert call("claims", "--verdict", "partly").stdout == "0 claims.\n"


def test_claims_refuses_unknown_filters():
    assert "Known: A, B, C" in refused("claims", "--paper", "D")
    assert "Did you mean 'reproduced'" in refused("claims", "--verdict", "reproducd")


# --- sweep and status ----------------------------------------------------------------------------


def test_sweep_records_what_is_missing_and_status_sees_it(fake, results):
    first = call("sweep", "fake", "--profile", "cpu", "--executor", "thread", "--limit", 4)
    assert first.exit_code == 0, first.stderr
    plan, done = first.stdout.splitlines()
    assert plan.startswith("fake, profile cpu: 0 of 6 points recorded, 6 missing; running 4")
    assert re.match(r"Done in \d+ s; 2 missing\.", done)
    assert (results / "fake.parquet").exists()
    assert not list(results.rglob("points/**/*.json"))

    status = call("status", "fake").stdout
    assert "cpu       4 of 6 points" in status
    assert "fill: emergence sweep fake --profile cpu" in status
    assert "width=7: seeds 1-2" in status
    assert "Outside these profiles" not in status
    tool = json.loads(call("status", "fake", "--profile", "cpu", "--json").stdout)
    assert tool["outside_profiles"] == {"fake": 0}
    (line,) = tool["status"]
    assert (line["experiment"], line["profile"]) == ("fake", "cpu")
    assert (line["recorded"], line["total"]) == (4, 6)
    assert line["missing"] == [{"cell": "width=7", "seeds": [1, 2]}]

    call("sweep", "fake", "--profile", "cpu", "--executor", "thread", "--no-compact")
    assert len(list((results / "points" / "fake").glob("*.json"))) == 2
    rows = Store(results).rows(fake.points("cpu"))
    assert sorted(rows["area"]) == [9, 10, 11, 49, 50, 51]
    again = call("sweep", "fake", "--profile", "cpu")
    assert again.stdout.endswith("6 of 6 points recorded, 0 missing. Nothing to do.\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("sweep", "sparcity", "--profile", "cpu"), "no experiment 'sparcity'"),
        (("sweep", "fake", "--profile", "cpi"), "Did you mean 'cpu'"),
        (("sweep", "fke", "--profile", "cpu"), "Did you mean 'fake'"),
        (("sweep", "fake", "--profile", "cpu", "--workers", "0"), "--workers"),
        (("sweep", "fake", "--profile", "cpu", "--workers", "two"), "--workers"),
        (("sweep", "fake", "--profile", "cpu", "--limit", "-1"), "--limit"),
        (("sweep", "fake", "--profile", "cpu", "--executor", "slurm"), "--executor"),
        (("sweep", "fake", "--profile", "cpu", "--device", "tpuu"), "device='tpuu'"),
        (("status", "fkae"), "Did you mean 'fake'"),
        (("status", "fake", "--profile", "smok"), "Did you mean 'smoke'"),
        (("build", "--profile", "quik"), "Did you mean 'quick'"),
        (("run", NOTEBOOK, "--profile", "quik"), "Did you mean 'quick'"),
        (("serve", "--port", "70000"), "--port"),
    ],
)
def test_what_is_asked_for_wrongly_is_named(fake, args, words):
    assert words in refused(*args)


def test_points_that_fail_are_named_and_the_others_kept(fake, results, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "fake", dataclasses.replace(fake, run=odd_fails))
    result = call("sweep", "fake", "--profile", "smoke", "--executor", "thread")
    assert result.exit_code == 1
    assert "width=3" in result.stderr
    assert "seed=1" in result.stderr
    assert list(Store(results).rows(fake.points("smoke"))["seed"]) == [0]


def test_an_interrupted_sweep_ends_with_130(fake, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt("fake: interrupted after 2 points, which are recorded")

    monkeypatch.setattr(sweep, "sweep", interrupted)
    result = call("sweep", "fake", "--profile", "cpu", "--executor", "thread")
    assert (result.exit_code, "after 2 points" in result.stderr) == (130, True)


def test_an_unwritable_results_folder(fake, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EMERGENCE_RESULTS", str(tmp_path / "file" / "results"))
    arguments = ("sweep", "fake", "--profile", "cpu", "--executor", "thread")
    line = refused(*arguments, code=1)
    assert str(tmp_path / "file" / "results") in line
    assert "EMERGENCE_RESULTS" in line
    assert not call(*arguments).stdout, "no plan that cannot be kept"


def test_a_full_disk(fake, results, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.os, "fsync", full)
    line = refused("sweep", "fake", "--profile", "cpu", "--executor", "thread", code=1)
    assert "No space left" in line
    assert str(results) in line
    assert not [p for p in results.rglob("*") if p.is_file() and ".locks" not in p.parts]


def test_a_corrupted_result_is_set_aside_and_named_and_the_rest_kept(fake, results):
    call("sweep", "fake", "--profile", "cpu", "--executor", "thread", "--no-compact")
    broken = next((results / "points" / "fake").glob("*.json"))
    broken.write_text("{")
    result = call("status", "fake")
    assert (result.exit_code, "5 of 6 points" in result.stdout) == (0, True)
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("Warning: ")
    assert str(broken) in warning
    assert "corrupt" in warning
    assert len(list((results / "corrupt").iterdir())) == 1


def test_a_corrupted_merged_file_is_set_aside_too(fake, results):
    call("sweep", "fake", "--profile", "cpu", "--executor", "thread")
    (results / "fake.parquet").write_bytes(b"PAR1 not really")
    result = call("claims")
    assert result.exit_code == 0, "a claim that does not rest on it is still shown"
    result = call("status", "fake")
    assert (result.exit_code, "0 of 6 points" in result.stdout) == (0, True)
    assert str(results / "fake.parquet") in result.stderr


def test_a_store_of_a_newer_version_is_refused(fake, results):
    call("sweep", "fake", "--profile", "smoke", "--executor", "thread", "--no-compact")
    path = next((results / "points" / "fake").glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    line = refused("status", "fake", code=1)
    assert str(path) in line
    assert "newer" in line
    assert "upgrade" in line
    assert path.exists()


def test_debug_shows_the_traceback():
    with pytest.raises(LookupError, match="no experiment 'nothing'"):
        call("--debug", "status", "nothing")


# --- the real experiments ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_a_real_experiment_from_sweep_to_verdict(name, results):
    experiment = EXPERIMENTS[name]
    assert set(experiment.profiles) <= set(PROFILES)
    first = call("sweep", name, "--profile", "smoke", "--executor", "thread", "--limit", 1)
    assert first.exit_code == 0, first.stderr
    if not experiment.judges:
        return
    # A judge must be able to read a store with a single row, and one that is complete.
    for _ in range(2):
        for entry in json.loads(call("claims", "--json").stdout)["claims"]:
            if entry["experiment"] == name:
                assert (entry["profile"], entry["recorded"] >= 1) == ("smoke", True)
                assert entry["evidence"]
        rest = call("sweep", name, "--profile", "smoke", "--executor", "thread")
        assert rest.exit_code == 0, rest.stderr
    (line,) = json.loads(call("status", name, "--profile", "smoke", "--json").stdout)["status"]
    assert (line["recorded"], line["missing"], line["command"]) == (line["total"], [], "")
    assert line["seconds_spent"] > 0
    rows = Store(results).rows(experiment.points("smoke"))
    for claim, judge in experiment.judges.items():
        verdict = judge(rows)
        assert call("claims").stdout.count(f"{claim:<5}{verdict.status}\n") == 1


def test_a_sweep_in_processes_of_its_own(results):
    args = ("--profile", "smoke", "--workers", "1", "--limit", "1")
    running = process("sweep", "sparsity", *args)
    output, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    assert "running 1 with 1 worker" in output
    points = EXPERIMENTS["sparsity"].points("smoke")
    assert Store(results).missing(points) == points[1:]


# --- train ---------------------------------------------------------------------------------------


def test_train_prints_the_result_and_keeps_it(tmp_path):
    result = call("train", "linear_map", *TINY, "--output", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"final loss   \d\.\d{4} nats \(floor 0\.2773\)", result.stdout)
    assert re.search(r"accuracy     \d+\.\d%", result.stdout)
    assert f"kept in      {tmp_path / 'run'}" in result.stdout
    assert "step 20/20" in result.stderr
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    assert note["training"]["steps"] == 20


def test_train_lists_its_parameters():
    listed = call("train", "linear_map", "--list").stdout
    assert re.search(r"^  row_weight +3 +an integer$", listed, re.M)
    assert re.search(r"^  lr +0\.001 +a number$", listed, re.M)
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("linear_mop",), "Did you mean 'linear_map'"),
        (("linear_map", "-p", "row_wieght", "2"), "Did you mean 'row_weight'"),
        (("linear_map", "-p", "steps", "many"), "steps must be an integer"),
        (("linear_map", "-p", "state_size", "4", "-p", "row_weight", "5"), "at most state_size=4"),
        (("linear_map", "-p", "n_heads", "3"), "a divisor of d_model=128"),
        (("linear_map", "-p", "lr", "0"), "lr must be a positive number"),
        (("linear_map", "-p", "lr", "1e-3", "-p", "lr", "1e-4"), "given once"),
        (("linear_map", "-p", "lr"), "'-p' requires 2 arguments"),
        (("linear_map", "-p", "betas", "2,3"), "betas must be two numbers ≥ 0 and below 1"),
        (("linear_map", "-p", "betas", ".9"), "betas must be 2 values separated by commas"),
        (("linear_map", "-p", "weight_decay", "-1"), "weight_decay must be a number ≥ 0"),
        (("linear_map", "--device", "nope"), "device='nope'"),
    ],
)
def test_train_says_what_is_wrong(args, words):
    assert words in refused("train", *args)


def test_train_refuses_a_folder_in_use_and_one_it_cannot_write(tmp_path):
    (tmp_path / "file").touch()
    assert "new or an empty folder" in refused("train", "linear_map", *TINY, "--output", tmp_path)
    line = refused("train", "linear_map", *TINY, "--output", tmp_path / "file" / "x", code=1)
    assert "cannot be written" in line


def test_train_on_a_full_disk_keeps_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    line = refused("train", "linear_map", *TINY, "--output", tmp_path / "run", code=1)
    assert "No space left" in line
    assert str(tmp_path / "run") in line
    assert not [path for path in tmp_path.iterdir() if "run" in path.name]


def test_an_interrupted_training_ends_with_130_and_leaves_no_folder(tmp_path):
    steps = ["-p", "steps", "4000", "-p", "eval_every", "400", "-p", "stop_margin", "none"]
    running = process("train", "linear_map", *TINY[:12], *steps, "--output", str(tmp_path / "run"))
    lines = [running.stderr.readline() for _ in range(2)]
    assert lines[1].startswith("step 400/4000"), lines
    assert list(tmp_path.glob(".run.*")), "kept under another name until it is complete"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.splitlines()[-1]) == (130, "Interrupted.")
    assert not list(tmp_path.glob("*run*"))


# --- notebooks and the book ----------------------------------------------------------------------


def test_run_hands_names_and_text_to_the_notebook(monkeypatch, tmp_path):
    seen = {}

    def run_notebook(name, parameters, output):
        seen.update(name=name, parameters=dict(parameters), output=output)
        return output

    monkeypatch.setattr(book, "run_notebook", run_notebook)
    output = tmp_path / "out.ipynb"
    args = ("run", NOTEBOOK, "-p", "state_size", "12", "--profile", "smoke", "--output", output)
    assert call(*args).stdout == f"Executed copy: {output}\n"
    assert seen == {
        "name": NOTEBOOK,
        "parameters": {"state_size": "12", "profile": "smoke"},
        "output": output,
    }


def test_an_unknown_notebook_is_named():
    assert "There is no notebook '02_sparcity'" in refused("run", "02_sparcity")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("02_sparcity",), f"Did you mean '{NOTEBOOK}'"),
        ((NOTEBOOK, "-p", "state_sise", "8"), "Did you mean 'state_size'"),
        ((NOTEBOOK, "-p", "state_size", "eight"), "state_size must be a Python literal"),
    ],
)
def test_run_refuses_what_the_notebook_does_not_take(args, words):
    assert words in refused("run", *args)


def test_build_passes_on_what_was_asked_and_fails_with_its_errors(monkeypatch):
    seen = {}
    monkeypatch.setattr(book, "build", lambda **given: seen.update(given))
    assert call("build", "--force").exit_code == 0
    assert seen == {"profile": "quick", "force": True}

    def broken(**_):
        raise BuildError("02_sparsity, cell 4: it failed")

    monkeypatch.setattr(book, "build", broken)
    assert "cell 4" in refused("build", code=1)


def test_serve_shows_the_book_until_interrupted(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("the book")
    monkeypatch.setattr(book, "html_folder", lambda: tmp_path)
    seen = []

    def one_request(server):
        url = f"http://127.0.0.1:{server.server_port}/"
        client = Thread(target=lambda: seen.append(urllib.request.urlopen(url).read()))
        client.start()
        server.handle_request()
        client.join(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", one_request)
    result = call("serve", "--port", 0)
    assert (result.exit_code, seen) == (0, [b"the book"])
    assert "http://127.0.0.1:" in result.stdout


def test_serve_without_a_book_or_with_a_port_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "html_folder", lambda: tmp_path)
    assert "emergence build" in refused("serve", code=1)
    (tmp_path / "index.html").touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), None) as other:
        line = refused("serve", "--port", other.server_port, code=1)
    assert "--port" in line


def test_the_commands_are_those_of_the_design():
    assert COMMANDS == ["build", "claims", "run", "serve", "status", "sweep", "train"]
    assert all(isinstance(command, click.Command) for command in main.commands.values())
