"""The whole book, built in a copy whose path has spaces, read as HTML and seen in a browser.

Nothing here trusts the checks of emergence_lib/book: pages are parsed again, on their own terms.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import copy as clone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup, Tag

from emergence_lib.book.stage import toc_pages

ROOT = Path(__file__).resolve().parents[1]
PAGES = toc_pages(ROOT)
NOTEBOOKS = [page for page in PAGES if page.startswith("notebooks/")]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
COPIED = ("emergence_lib", "book", "notebooks", "_config.yml", "_toc.yml", "pyproject.toml")


def run_build(root: Path) -> str:
    """`emergence build` in a checkout, by its own library; gives what it printed.

    With the smallest live runs: what `quick` shows differs in numbers, not in kind.
    """
    done = subprocess.run(
        [sys.executable, "-m", "emergence_lib.cli", "build", "--profile", "smoke"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built copy of this checkout."""
    root = tmp_path_factory.mktemp("book") / "a copy of the book"
    root.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name)
        else:
            shutil.copy(ROOT / name, root / name)
    printed = run_build(root)
    for page in NOTEBOOKS:
        assert f"{page.removeprefix('notebooks/')}: executed in" in printed
    return root


@pytest.fixture(scope="session")
def html(copy: Path) -> Path:
    return copy / "_build" / "html"


@pytest.fixture(scope="session")
def soups(html: Path) -> dict[str, BeautifulSoup]:
    """Every page of the book by its path without suffix."""
    paths = [path for path in html.rglob("*.html") if "_static" not in path.parts]
    return {
        path.relative_to(html).with_suffix("").as_posix(): BeautifulSoup(
            path.read_text("utf-8"), "html.parser"
        )
        for path in paths
    }


def article(soup: BeautifulSoup) -> Tag:
    found = soup.find("article")
    assert isinstance(found, Tag)
    return found


def test_every_page_is_there_with_its_title(soups: dict[str, BeautifulSoup]):
    for page in PAGES:
        heading = article(soups[page]).find("h1")
        assert heading is not None
        assert heading.get_text(strip=True)
    assert {"genindex", "search", "index"} <= set(soups)


def test_links_and_images_inside_the_book_resolve(html: Path, soups: dict[str, BeautifulSoup]):
    ids = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in soups.items()}
    checked = 0
    for page, soup in soups.items():
        for tag in soup.find_all(["a", "img", "link", "script"]):
            url = urlsplit(str(tag.get("href") or tag.get("src") or ""))
            if url.scheme or url.netloc:
                continue
            path = (html / page).parent / unquote(url.path) if url.path else html / f"{page}.html"
            assert path.exists(), (page, url)
            target = os.path.relpath(path, html).removesuffix(".html")
            if url.fragment and target in ids:
                assert unquote(url.fragment) in ids[target], (page, url)
                checked += 1
    assert checked > 100


def test_pages_fetch_nothing(html: Path, soups: dict[str, BeautifulSoup]):
    for page, soup in soups.items():
        for tag in soup.find_all(["script", "img", "link", "iframe"]):
            url = urlsplit(str(tag.get("href") or tag.get("src") or ""))
            assert not url.netloc, (page, str(tag)[:200])
    assert (html / "_static/mathjax/tex-svg-full.js").exists()
    assert (html / "_static/mathjax/LICENSE").exists()


def test_figures_are_described_captioned_and_numbered(soups: dict[str, BeautifulSoup]):
    numbers = []
    for page in PAGES:
        for image in article(soups[page]).find_all("img"):
            assert len(str(image.get("alt", ""))) >= 40, (page, image.get("src"))
        for figure in article(soups[page]).find_all("figure"):
            caption = figure.find("figcaption")
            match = re.match(r"Fig\. (\d+)\s+\S", caption.get_text(" ", strip=True))
            assert match, (page, figure.get("id"))
            assert figure.get("id")
            numbers.append(int(match[1]))
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 8


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_launch_buttons_open_the_tracked_notebook(soups: dict[str, BeautifulSoup], page: str):
    links = {str(a["href"]) for a in soups[page].find_all("a", href=True)}
    repository = CONFIG["repository"]["url"].removeprefix("https://github.com/")
    colab = [link for link in links if link.startswith("https://colab.research.google.com/")]
    binder = [link for link in links if link.startswith("https://mybinder.org/")]
    assert colab == [
        f"https://colab.research.google.com/github/{repository}/blob/main/{page}.ipynb"
    ]
    assert binder == [f"https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/{page}.ipynb"]
    assert (ROOT / f"{page}.ipynb").exists()


def test_nothing_of_the_template_the_machine_or_a_progress_bar_is_left(
    copy: Path, soups: dict[str, BeautifulSoup]
):
    unwanted = ["The Jupyter Book community", "executablebooks", "My Jupyter Book", "2023."]
    unwanted += ["widget-view+json", "█", "it/s]", str(copy), str(ROOT), "<!-- generated"]
    for page, soup in soups.items():
        footer = soup.find("footer", class_="bd-footer-content") or soup
        text = str(soup)
        for word in unwanted:
            assert word not in (footer.get_text() if word == "2023." else text), (page, word)
    assert f"© Copyright {CONFIG['copyright']}" in soups["book/intro"].get_text()


def test_markdown_and_mathematics_were_rendered(soups: dict[str, BeautifulSoup]):
    for page in PAGES:
        body = clone(article(soups[page]))
        for tag in body.find_all(["pre", "code"]):
            tag.extract()
        text = body.get_text(" ")
        assert not re.search(r"\{(numref|cite:?\w*|ref|doc)\}|\]\(\.\.?/|^:::", text), page
    assert any(soups[page].find(class_="math") for page in NOTEBOOKS)


def test_citations_lead_to_the_bibliography(soups: dict[str, BeautifulSoup]):
    for page in ["book/intro", *NOTEBOOKS]:
        links = [str(a["href"]) for a in article(soups[page]).find_all("a", href=True)]
        assert any("references.html#" in link for link in links), page
    assert len(soups["book/references"].find_all(class_="citation")) >= 3


def test_the_ledger_lists_every_claim(soups: dict[str, BeautifulSoup]):
    from emergence_lib.claims import CLAIMS

    text = soups["book/claims"].get_text(" ")
    for claim in CLAIMS:
        assert re.search(rf"\b{claim.id}\b", text), claim.id
    rows = soups["book/claims"].select("table tbody tr")
    assert len(rows) == len(CLAIMS)
    for row in rows:
        assert re.search("reproduced|partly|not reproduced|not tested here", row.get_text())


def test_the_status_page_says_what_ran(soups: dict[str, BeautifulSoup]):
    notebooks, coverage = soups["book/status"].find_all("table")
    cells = [[td.get_text(strip=True) for td in tr("td")] for tr in notebooks("tr")[1:]]
    assert [row[0] for row in cells] == [page.removeprefix("notebooks/") for page in NOTEBOOKS]
    for _, seconds, memory, _, how in cells:
        assert 1 < float(seconds) < 600
        assert 100 < float(memory) < 10_000
        assert how == "executed"
    for experiment in ("plateau", "attention_bias", "sparsity"):
        assert experiment in coverage.get_text()


def test_the_api_page_has_every_public_module(soups: dict[str, BeautifulSoup]):
    ids = {tag["id"] for tag in soups["book/api"].find_all(id=True)}
    for path in (ROOT / "emergence_lib").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module != "emergence_lib" and "._" not in module:
            assert f"module-{module}" in ids, module
    assert {"emergence_lib.tasks.linear_map.LinearMap", "emergence_lib.training.train.train"} <= ids


def test_prose_is_rebuilt_without_running_a_notebook(copy: Path, html: Path):
    """Last of the tests that only read, since it builds again."""
    page = copy / "book" / "methods.md"
    page.write_text(page.read_text("utf-8") + "\nA sentence that a test added.\n", "utf-8")
    printed = run_build(copy)
    assert "executed in" not in printed
    n_notebooks = len(list((copy / "notebooks").glob("*.py")))
    assert f"0 of {n_notebooks} notebooks executed" in printed
    assert "A sentence that a test added." in (html / "book/methods.html").read_text("utf-8")


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("chromium and chromedriver are not installed (.ci/run installs them)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",  # any name would fail to resolve, and be logged
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(CHROMEDRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_in_a_browser(browser: Any, html: Path, width: int, theme: str):
    """No sideways scrolling, no clipped figure, no error in the console, no request."""
    view = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
    asked = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", asked)
    for page in PAGES:
        browser.get((html / f"{page}.html").as_uri())
        seen = browser.execute_async_script(_LOOK)
        assert seen["theme"] == theme, page
        assert seen["scroll_width"] <= seen["client_width"], (page, seen["wide"])
        assert seen["clipped"] == [], page
        assert seen["mathematics"] == seen["typeset"], page
        errors = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
        assert errors == [], page
        requests = [
            event["params"]["request"]["url"]
            for entry in browser.get_log("performance")
            if (event := json.loads(entry["message"])["message"])["method"]
            == "Network.requestWillBeSent"
        ]
        assert [url for url in requests if urlsplit(url).scheme not in ("file", "data")] == [], page
        if folder := os.environ.get("BOOK_SCREENSHOTS"):
            name = f"{page.replace('/', '_')}_{theme}_{width}.png"
            browser.get_screenshot_as_file(str(Path(folder) / name))


def test_search_finds_a_word_offline(browser: Any, html: Path):
    browser.get((html / "search.html").as_uri() + "?q=plateau")
    found = browser.execute_async_script(
        """
        const done = arguments[0], start = Date.now();
        (function look() {
            const n = document.querySelectorAll('#search-results li a').length;
            if (n || Date.now() - start > 20000) done(n); else setTimeout(look, 200);
        })();
        """
    )
    assert found > 0


_LOOK = """
const done = arguments[0], start = Date.now();
const root = document.documentElement, article = document.querySelector('article');
const mathematics = [...article.querySelectorAll('.math')];
const typeset = () => mathematics.filter(m => m.querySelector('mjx-container')).length;
const look = () => {
    const box = article.getBoundingClientRect();
    done({
        theme: root.dataset.theme,
        scroll_width: root.scrollWidth,
        client_width: root.clientWidth,
        wide: [...article.querySelectorAll('*')]
            .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1)
            .slice(0, 5).map(e => e.outerHTML.slice(0, 120)),
        clipped: [...article.querySelectorAll('img')].filter(i => {
            const r = i.getBoundingClientRect();
            const inside = r.left >= box.left - 1 && r.right <= box.right + 1;
            return !i.naturalWidth || r.width < 40 || !inside;
        }).map(i => i.src),
        mathematics: mathematics.length,
        typeset: typeset(),
    });
};
const images = Promise.all([...document.images].map(i => i.decode().catch(() => null)));
(function wait() {
    if (typeset() == mathematics.length || Date.now() - start > 30000) images.then(look);
    else setTimeout(wait, 50);
})();
"""
