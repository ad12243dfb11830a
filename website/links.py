"""What a built site needs: every link and anchor leads somewhere, and nothing comes from elsewhere.

It reads the HTML that readers get, so it holds whatever builds the site.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
LOADED_LINKS = {"stylesheet", "preload", "modulepreload", "icon", "preconnect", "dns-prefetch"}


class _Page(HTMLParser):
    """Gathers what a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.pictures: list[str] = []  # those without words for who can't see them
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            self.loads.add(given[LOADED[tag]])
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.add(given.get("href", ""))
        if tag == "img" and not given.get("alt"):
            self.pictures.append(given.get("src", ""))


def findings(site: Path) -> list[str]:
    """All that is wrong with the pages below this folder, each with its page."""
    site = site.resolve()
    pages = {
        path: _Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"  # its links are for any depth
    }
    return [
        f"{path.relative_to(site)}: {wrong}"
        for path, page in pages.items()
        for wrong in _wrong(site, path, page, pages)
    ]


def _wrong(site: Path, path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    yield from (f"{src}: a picture without a text" for src in page.pictures)
    for url in sorted(page.loads):
        if urlsplit(url).netloc:
            yield f"{url}: is loaded from elsewhere"
        elif _target(site, path, url) is None and not url.startswith("data:"):
            yield f"{url}: is not there"
    for url in sorted(page.links):
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        target = path if not parts.path else _target(site, path, parts.path)
        if target is None:
            yield f"{url}: leads nowhere"
        elif parts.fragment and unquote(parts.fragment) not in _anchors(target, pages):
            yield f"{url}: there is no such anchor"


def _anchors(target: Path, pages: dict[Path, _Page]) -> set[str]:
    return pages[target].anchors if target in pages else set()


def _target(site: Path, path: Path, url: str) -> Path | None:
    """The file that a link means; None where there is none."""
    name = unquote(urlsplit(url).path)
    found = (site / name.lstrip("/") if name.startswith("/") else path.parent / name).resolve()
    found = found / "index.html" if found.is_dir() else found
    return found if found.is_file() and found.is_relative_to(site) else None
