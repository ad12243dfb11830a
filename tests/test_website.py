"""The site has its own parts: the pages for agents, and the checks of a built site."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree as ET

import pytest
import rollcage
from rollcage import errors

from website import recording
from website.links import findings
from website.pages import DOCS, first_sentence, llms, llms_full, missing_pages, pages, write_texts

Run = Callable[..., "CompletedProcess[str]"]


def test_every_page_has_a_group_on_the_site() -> None:
    assert missing_pages() == []
    groups = {page.group for page in pages() if page.group}
    assert groups == {"Tutorials", "How-to guides", "Reference", "Explanation"}


def test_llms_txt_lists_each_page_with_its_summary() -> None:
    text = llms()
    assert text.startswith("# Rollcage\n\n> ")
    for page in pages():
        (line,) = (each for each in text.splitlines() if f"]({page.path}): " in each)
        said = line.partition(": ")[2]
        assert len(said) > 10, page.path
        assert not said.startswith(("```", "#", "|")), page.path


def test_llms_full_txt_holds_each_page() -> None:
    text = llms_full()
    assert all(page.text.strip() in text for page in pages())


def test_the_first_sentence_is_plain_text() -> None:
    text = "# Title\n\n```console\n$ ls\n```\n\nSee [the\ngate](gate.md), e. It ends.\n"
    assert first_sentence(text) == "See the gate, e."


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a site of two pages without faults."""
    (tmp_path / "gate").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="gate/#rules">rules</a><a href="#here">here</a><p id="here">'
        '<a href="https://example.org">elsewhere</a><img src="a.svg" alt="A picture">'
    )
    (tmp_path / "gate" / "index.html").write_text('<h1 id="rules">Rules</h1><a href="..">up</a>')
    (tmp_path / "a.svg").write_text("<svg/>")
    return tmp_path


def test_a_sound_site_has_no_findings(site: Path) -> None:
    assert findings(site) == []
    write_texts(site)
    assert (site / "concepts.md").is_file()
    assert (site / "llms.txt").is_file()


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ('<a href="gone/">x</a>', "gone/: leads nowhere"),
        ('<a href="gate/#gone">x</a>', "gate/#gone: there is no such anchor"),
        ('<a href="../../../etc/passwd">x</a>', "leads nowhere"),
        ('<img src="gone.svg" alt="x">', "gone.svg: is not there"),
        ('<img src="a.svg">', "a.svg: a picture without a text"),
        ('<script src="https://cdn.example.org/x.js"></script>', "is loaded from elsewhere"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "is loaded from elsewhere"),
        ('<link rel="preconnect" href="https://fonts.example.org">', "is loaded from elsewhere"),
    ],
)
def test_what_is_wrong_with_a_site_is_found(site: Path, added: str, said: str) -> None:
    page = site / "index.html"
    page.write_text(page.read_text() + added)
    (found,) = findings(site)
    assert found.startswith("index.html: ")
    assert said in found


def test_a_coding_agent_finds_how_to_use_it(run_offline: Run, tmp_path: Path) -> None:
    """The guide is in the wheel, and `rollcage --agents-md` prints it without the CLI."""
    ended = run_offline("rollcage", "--agents-md", cwd=tmp_path)
    text = Path(rollcage.__file__).with_name("AGENTS.md").read_text(encoding="utf-8")
    assert ended.stdout == text
    assert len(text) < 6000, "short: it is read as a whole, each time"
    assert "`rollcage --agents-md`" in llms()


def test_the_errors_that_agents_are_told_of_exist() -> None:
    text = Path(rollcage.__file__).with_name("AGENTS.md").read_text(encoding="utf-8")
    table = text.partition("## When it fails")[2].partition("## Look")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", table))
    assert named
    assert named <= set(errors.__all__)


def test_the_recording_is_what_the_quickstart_shows() -> None:
    made = "python -m website.recording"
    assert recording.TARGET.read_text(encoding="utf-8") == recording.recording(), made


PICTURES = sorted(DOCS.glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_words_and_both_colour_schemes(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert len(str(title.text)) > 40
    assert root.get("role") == "img"
    own_ground = 'class="screen"' in text or "background: #fff" in text
    assert own_ground or "prefers-color-scheme: dark" in text
    assert "href=" not in text
    assert "<script" not in text


def test_the_pictures_steps_are_the_first_pages() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\w+) \|", page.partition("call.svg")[2].partition("\n## ")[0], re.MULTILINE
    )
    drawn = re.findall(r'class="name"[^>]*>(\w+)<', (DOCS / "call.svg").read_text())
    assert rows
    assert [name for name in drawn if name in rows] == rows
