"""What a reader would trip over in the built pages: broken links, missing alt texts, leftovers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag

ALT_CHARACTERS = 40
"""A shorter alternative text cannot say what a figure shows."""

_DEFAULTS = ("The Jupyter Book community", "executablebooks", "My Jupyter Book", "© Copyright 2023")
_PROGRESS_BAR = re.compile(r"\d+%\|[█▏▎▍▌▋▊▉ #]*\||\b(it|step|s)/s\]|widget-view\+json")
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_CSS_FETCH = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""")


def problems(html: Path, pages: Iterable[str], config: dict[str, Any], root: Path) -> list[str]:
    """Everything wrong with the book in the folder `html`, one line each; none is a good book.

    Args:
        html: the built pages.
        pages: the pages of the table of contents, without suffix.
        config: the book's ``_config.yml``.
        root: the checkout; its path must be on no page.
    """
    found = []
    for page in pages:
        path = html / f"{page}.html"
        if not path.exists():
            found.append(f"{page}: the page is missing from the built book")
        elif page.startswith("notebooks/"):
            found += [f"{page}: {p}" for p in _launch_problems(_parse(path), page, config, root)]
    for path in sorted(html.rglob("*.html")):
        if "_static" not in path.relative_to(html).parts:
            name = path.relative_to(html).with_suffix("").as_posix()
            found += [f"{name}: {p}" for p in _page_problems(path, html, root)]
    for path in sorted(html.rglob("*.css")):
        for url in _CSS_FETCH.findall(path.read_text("utf-8")):
            found.append(f"{path.relative_to(html)}: fetches {url}; pages must read offline")
    return found


@cache
def _parse_version(path: Path, version: int) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def _parse(path: Path) -> BeautifulSoup:
    """The page's tree; each is needed by its own checks and by every page that links to it."""
    return _parse_version(path, path.stat().st_mtime_ns)


def _page_problems(path: Path, html: Path, root: Path) -> Iterator[str]:
    soup = _parse(path)
    for tag in soup.find_all(True):
        for attribute in ("href", "src"):
            if tag.has_attr(attribute):
                yield from _link_problems(tag, attribute, path, html)
    article = soup.find("article") or soup
    for image in article.find_all("img"):
        alt = str(image.get("alt", "")).strip()
        if len(alt) < ALT_CHARACTERS:
            yield (
                f"the image {image.get('src')} has the alternative text {alt!r}; say in at least "
                f"{ALT_CHARACTERS} characters what it shows"
            )
    text = soup.get_text(" ")
    everything = path.read_text("utf-8")
    for default in _DEFAULTS:
        if default in everything:
            yield f"a default of the template is left: {default!r}"
    if match := _PROGRESS_BAR.search(text):
        yield f"a progress bar reached the page: {match[0]!r}"
    if str(root) in everything:
        yield f"a path of this machine is on the page: {root}"


def _link_problems(tag: Tag, attribute: str, path: Path, html: Path) -> Iterator[str]:
    link = str(tag[attribute])
    url = urlsplit(link)
    if url.scheme in ("http", "https") or url.netloc:
        if _FETCHED.get(tag.name) == attribute and "canonical" not in str(tag.get("rel")):
            yield f"fetches {link}; pages must read offline"
        return
    if url.scheme:  # mailto, data, javascript
        return
    target = (path.parent / unquote(url.path)).resolve() if url.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.is_relative_to(html.resolve()) and url.path:
        yield f"the link {link} leaves the book"
    elif not target.exists():
        yield f"the link {link} leads nowhere"
    elif target.suffix == ".html" and unquote(url.fragment) not in _anchors(target):
        yield f"the link {link} names an anchor that is not there"


def _anchors(path: Path) -> set[str]:
    return _anchors_version(path, path.stat().st_mtime_ns)


@cache
def _anchors_version(path: Path, version: int) -> set[str]:
    soup = _parse_version(path, version)
    return {str(tag["id"]) for tag in soup.find_all(id=True)} | {""}


def _launch_problems(
    soup: BeautifulSoup, page: str, config: dict[str, Any], root: Path
) -> Iterator[str]:
    """Launch buttons must open the page's own notebook, which must be in the checkout."""
    url, branch = config["repository"]["url"], config["repository"]["branch"]
    repository = url.removeprefix("https://github.com/")
    buttons = config["launch_buttons"]
    expected = {
        "Colab": f"{buttons['colab_url']}/github/{repository}/blob/{branch}/{page}.ipynb",
        "Binder": f"{buttons['binderhub_url']}/v2/gh/{repository}/{branch}"
        f"?urlpath=lab/tree/{page}.ipynb",
    }
    links = {str(a["href"]) for a in soup.find_all("a", href=True)}
    for service, link in expected.items():
        if link not in links:
            yield f"there is no launch button for {service} that opens {link}"
    if not (root / f"{page}.ipynb").exists():
        yield f"{page}.ipynb, which the launch buttons open, is missing; run `make sync`"
