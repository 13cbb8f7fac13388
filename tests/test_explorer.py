"""The explorer: what is exported from the store, and the panels in a browser."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup

from emergence_lib.book.explorer import (
    DATA_FILE,
    explorer_markup,
    explorer_rows,
    explorer_script,
    run_data,
)
from emergence_lib.experiments import explorer
from emergence_lib.experiments.explorer import EXPLORER

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PANELS = ["attention", "loss", "rank", "gradient"]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """A short run, once under its own name and once as another condition."""
    (point,) = EXPLORER.points("smoke")
    row = {"seed": 0, **point.params, **EXPLORER.run(point, "cpu")}
    return pd.DataFrame([row, row | {"condition": "linear map, bias"}])


def exported(rows: pd.DataFrame) -> Any:
    script = explorer_script(rows)
    assert script.startswith("window.emergenceExplorer = ")
    return json.loads(script.removeprefix("window.emergenceExplorer = ").rstrip(";\n"))


def test_the_script_holds_the_rows_of_the_store(rows: pd.DataFrame):
    runs = exported(rows)["runs"]
    assert [run["name"] for run in runs] == ["linear map", "linear map, bias"]
    run, row = runs[0], rows.iloc[0]
    assert run["steps"] == row["eval_steps"]
    for name, column in (("loss", "query_loss"), ("alignment", "alignment"), ("rank", "rankme")):
        for query in range(8):
            assert run[name][query] == pytest.approx(row[column][query], abs=0.006)
    assert run["precached"] == pytest.approx(row["precached"], abs=0.0006)
    flat = list(base64.b64decode(run["pattern"]))
    n_looks, n_heads, n_queries, n_keys = run["shape"]
    look, head, query, key = 2, 3, 4, 5
    place = ((look * n_heads + head) * n_queries + query) * n_keys + key  # as explorer.js reads it
    assert flat[place] == explorer.patterns(row)[look, head, query, key]
    assert len(flat) == n_looks * n_heads * n_queries * n_keys


def test_a_query_is_learned_when_the_page_on_lenses_says_so(rows: pd.DataFrame):
    row = rows.iloc[0].copy()
    steps = row["eval_steps"]
    falls = [0.69] * 3 + [0.0] * (len(steps) - 3)
    row["query_loss"] = [falls, *([[0.69] * len(steps)] * 7)]
    assert run_data(row)["learned"] == [steps[3], *([None] * 7)]


def test_what_is_recorded_is_small_enough_for_a_page():
    recorded = explorer_rows()
    static = ROOT / "book" / "_static"
    size = len(explorer_script(recorded)) + len(explorer_markup(recorded))
    size += sum((static / f"explorer.{kind}").stat().st_size for kind in ("js", "css"))
    assert size < 1_000_000


def test_nothing_recorded_is_said_with_the_command_that_records():
    nothing = pd.DataFrame()
    assert "emergence sweep explorer --profile cpu" in explorer_markup(nothing)
    assert exported(nothing) == {"runs": []}


def test_the_markup_is_one_block_with_a_table_for_readers_without_scripts(rows: pd.DataFrame):
    markup = explorer_markup(rows)
    assert "\n\n" not in markup  # Markdown would end the block there
    soup = BeautifulSoup(markup, "html.parser")
    table = soup.select_one("noscript table")
    assert table is not None
    cells = [[td.get_text() for td in tr("td")] for tr in table("tr")[1:]]
    assert {line[0] for line in cells} == set(rows["condition"])
    first = rows.iloc[0]
    mean_loss = sum(loss[0] for loss in first["query_loss"]) / 8
    assert cells[0][1:3] == ["0", f"{mean_loss:.3f}"]
    for control in soup.select("select, input, button"):
        named = control.get("aria-label") or soup.select_one(f'label[for="{control["id"]}"]')
        assert named, control


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("chromium and chromedriver are not installed (.ci/run installs them)")
    from selenium import webdriver

    folder = tmp_path_factory.mktemp("explorer")
    shutil.copytree(ROOT / "book" / "_static", folder / "_static")
    (folder / "_static" / DATA_FILE).write_text(explorer_script(rows), "utf-8")
    (folder / "book").mkdir()
    (folder / "book" / "explorer.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><body>{explorer_markup(rows)}</body></html>',
        "utf-8",
    )
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(CHROMEDRIVER))
    view = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
    driver.get((folder / "book" / "explorer.html").as_uri())
    yield driver
    driver.quit()


def seen(page: Any) -> dict[str, tuple[str, str]]:
    """Each panel's sentence and its picture."""
    return {
        name: tuple(
            page.execute_script(
                """
                const panel = document.querySelector(`[data-panel="${arguments[0]}"]`);
                const canvas = panel.querySelector("canvas");
                const picture = canvas ? canvas.toDataURL() : panel.querySelector("svg").outerHTML;
                return [panel.querySelector("output").textContent, picture];
                """,
                name,
            )
        )
        for name in PANELS
    }


def errors(page: Any) -> list[str]:
    return [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_slider_moves_every_panel(page: Any, rows: pd.DataFrame):
    from selenium.webdriver.common.keys import Keys

    slider = page.find_element("id", "explorer-step")
    slider.send_keys(Keys.HOME)
    start = seen(page)
    slider.send_keys(Keys.END)
    end = seen(page)
    for name in PANELS:
        assert start[name][1] != end[name][1], name
    row = rows.iloc[0]
    mean_loss = sum(loss[-1] for loss in row["query_loss"]) / 8
    assert f"mean {mean_loss:.3f} nats" in end["loss"][0]
    rank = sum(values[-1] for values in row["rankme"]) / 8
    assert f"mean {rank:.2f} directions" in end["rank"][0]
    assert f"pre-cached {round(100 * row['precached'][-1])} %" in end["gradient"][0]
    kept = explorer.patterns(row)[-1] / 255
    needed = [kept[:, i, keys].sum(-1) for i, keys in enumerate(row["needed"])]
    best = max(sum(needed) / 8)  # the head shown first is the one that ends nearest to the truth
    assert end["attention"][0] == f"{round(100 * best)} % on needed keys"
    assert slider.get_attribute("aria-valuetext") == "step 20 of 20"
    slider.send_keys(Keys.ARROW_LEFT)
    assert slider.get_attribute("aria-valuetext") == f"step {row['eval_steps'][-2]} of 20"
    page.find_element("id", "explorer-on").click()
    assert seen(page) == end
    assert errors(page) == []


def test_another_head_and_another_run(page: Any):
    from selenium.webdriver.support.ui import Select

    before = seen(page)
    heads = Select(page.find_element("id", "explorer-head"))
    other = "layer 1, head 5"
    if heads.first_selected_option.text == other:
        other = "layer 1, head 6"
    heads.select_by_visible_text(other)
    after = seen(page)
    assert before["attention"] != after["attention"]
    assert all(before[name] == after[name] for name in PANELS[1:])
    choice = Select(page.find_element("id", "explorer-run"))
    assert [option.text for option in choice.options] == [
        "linear map, seed 0",
        "linear map, bias, seed 0",
    ]
    choice.select_by_index(1)
    assert errors(page) == []


def test_a_phone_shows_it_without_sideways_scrolling_and_both_themes(page: Any):
    wide = page.execute_script("return document.documentElement.scrollWidth")
    assert wide <= 390
    colours = []
    for theme in ("light", "dark"):
        page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        colours.append(
            page.execute_script(
                "return getComputedStyle(document.querySelector("
                "'[data-panel=\"loss\"] path')).stroke"
            )
        )
    assert colours[0] != colours[1]
    assert errors(page) == []
