"""The pages as Markdown, and two texts for coding agents: `llms.txt` and `llms-full.txt`.

`llms.txt` lists every page with its first sentence, in the groups of the site; `llms-full.txt` is
all of them in one file. Each page is on the site as Markdown, too, beside its folder:
`concepts.md` beside `concepts/`. Links between them stay as they are in the sources.
"""

import importlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_PAGES = {"schema/README.md"}  # what is said on GitHub of a folder of files


class Page(NamedTuple):
    """A page as the site lists it."""

    group: str
    title: str
    path: str

    @property
    def text(self) -> str:
        """Its Markdown."""
        return (DOCS / self.path).read_text(encoding="utf-8")


def settings() -> dict[str, Any]:
    """What `mkdocs.yml` says."""
    yaml: Any = importlib.import_module("yaml")  # which brings no types
    found: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return found


def pages() -> list[Page]:
    """Every page that the site lists, in its order."""

    def below(entries: list[Any], group: str) -> Iterator[Page]:
        for entry in entries:
            ((title, what),) = entry.items()
            if isinstance(what, str):
                yield Page(group, title, what)
            else:
                yield from below(what, group or title)

    return list(below(settings()["nav"], ""))


def missing_pages() -> list[str]:
    """The pages that lie in the folder, and are not listed."""
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    return sorted(there - {page.path for page in pages()} - NOT_PAGES)


def first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph, as plain text."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = [block.strip() for block in text.split("\n\n")]
    lone = re.compile(r"\[[^\]]*\]\([^)]*\)")  # to the page in another language
    prose = (b for b in paragraphs if re.match(r"[\w`*\[]", b) and not lone.fullmatch(b))
    found = " ".join(next(prose, "").split())
    found = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found)
    return re.split(r"(?<=[.?])(?: |$)|(?<=。)", found)[0]


def llms() -> str:
    """The text of `llms.txt`."""
    about = settings()
    lines = [f"# {about['site_name']}", "", f"> {about['site_description']}", ""]
    lines += ["All pages in one file: [llms-full.txt](llms-full.txt).", ""]
    lines += ["How a coding agent uses Rollcage: `rollcage --agents-md`.", ""]
    group = None
    for page in pages():
        if page.group != group:
            lines += [*([""] if group is not None else []), f"## {page.group or 'Start'}", ""]
            group = page.group
        lines.append(f"- [{page.title}]({page.path}): {first_sentence(page.text)}")
    return "\n".join(lines) + "\n"


def llms_full() -> str:
    """The text of `llms-full.txt`."""
    return "\n\n".join(f"<!-- {page.path} -->\n\n{page.text.strip()}" for page in pages()) + "\n"


def write_texts(site: Path) -> None:
    """Put them into a site that is built."""
    (site / "llms.txt").write_text(llms(), encoding="utf-8")
    (site / "llms-full.txt").write_text(llms_full(), encoding="utf-8")
    for page in pages():
        target = site / page.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOCS / page.path, target)
