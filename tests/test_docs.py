"""The code of README and documentation runs, as a reader would run it.

On one page, the Python blocks without a title are one program, from top to bottom. A block with
`title="name.py"` is a file of that name, and so is one after a line that ends with its name and a
colon, as in a README, of which GitHub and package indexes drop titles. The `$` lines of a console
block are commands, run in order in the folder with those files; what stands below one is its output
(`...` for any text; ids, times and the width of columns are not compared), and `# exit code N` on
its line is how it ends. `ID` in a command is the first id in the output of the command before.
Commands that need the network or another environment are named below, with the reason.
"""

import doctest
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest
from rollcage import errors
from rollcage.trace import json_schema
from rollcage.values import decoding
from rollcage_cli import app

from website import translated
from website.translated import code_of, headings_of

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "*/*/README.md", "packages/core/src/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.name.endswith(".zh-CN.md")  # which have the code of the English ones: a test below
    if "$ " in path.read_text(encoding="utf-8") or "```" in path.read_text(encoding="utf-8")
)
Run = Callable[..., "CompletedProcess[str]"]

NOT_RUN = {
    "pip install": "needs a package index",
    "nox": "makes environments of its own; this test is a part of it",
    "rollcage export @shopping --otlp": "needs a collector; the tests of packages/otel have one",
    "PHOENIX_HOST=127.0.0.1 phoenix serve": "`nox -s phoenix` does it",
    "rollcage demo": "takes its time, and has tests of its own",
    "rollcage quickstart\n": "takes its time, and has tests of its own",
    "rollcage runs --store rollcage-demo": "needs the demo to have run",
    "rollcage show latest --store rollcage-demo": "needs the demo to have run",
    "python examples/": "test_examples.py runs each of them",
}
LANGUAGES = {"python", "console", "json", "text", "toml"}
FENCE = re.compile(
    r"(?:`(?P<file>[\w.]+)`:\n\n)?^```(?P<language>\w*)(?: title=\"(?P<title>[\w.]+)\")?\n"
    r"(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
ID = re.compile(r"\b[0-9a-f]{16,64}\b")
VARIES = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b|\b[0-9a-f]{64}\b"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d+(\.\d)? (µs|ms|s)\b"
)
SHELL = re.compile(r"[|&;<>$*]|^\w+=|^cd ")  # a shell is needed
CHECKER = doctest.OutputChecker()
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    language: str
    title: str
    text: str
    line: int  # of its first line of text, from 0


class Command(NamedTuple):
    line: str
    exit_code: int
    output: str


def blocks(text: str) -> list[Block]:
    return [
        Block(
            found["language"],
            found["file"] or found["title"] or "",
            found["text"],
            text.count("\n", 0, found.start("text")),
        )
        for found in FENCE.finditer(text)
    ]


def program(text: str) -> str:
    """Return the Python blocks without a title, each line at its number in the page."""
    lines = [""] * (text.count("\n") + 1)
    for block in blocks(text):
        if block.language == "python" and not block.title:
            code = block.text.splitlines()
            lines[block.line : block.line + len(code)] = code
    return "\n".join(lines) + "\n" if any(lines) else ""


def commands(text: str) -> list[Command]:
    """Return the commands of a console block with the output shown."""
    found = []
    for shown in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, output = shown.partition("\n")
        said = re.search(r"# exit code (\d+)$", line)
        found.append(Command(line, int(said[1]) if said else 0, output))
    return found


def same(shown: str, output: str) -> bool:
    """Return whether the output is the output that the page shows."""
    want, got = (VARIES.sub("<varies>", text) for text in (shown, output))
    return CHECKER.check_output(want, got, LOOSE)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)
# One of its commands runs a suite of hundreds of tests.
LONG = ROOT / "docs/write-an-adapter.md"
every_page_or_at_night = pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.nightly] * (page == LONG)) for page in PAGES],
    ids=page_id,
)


@every_page
def test_python_blocks_run(page: Path, run_offline: Run, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = program(text)
    if not code:
        return
    for block in blocks(text):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    (tmp_path / "the_page.py").write_text(code, encoding="utf-8")
    ended = run_offline("python", "the_page.py", cwd=tmp_path)
    assert ended.returncode == 0, f"{page}: line numbers are the page's own\n{ended.stdout}"


@every_page_or_at_night
def test_commands_do_what_is_shown(page: Path, run_offline: Run, tmp_path: Path) -> None:
    todo, before = set(), ""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            todo |= {block.title} if block.language == "python" else set()
        for command in commands(block.text) if block.language == "console" else ():
            if f"{command.line}\n".startswith(tuple(NOT_RUN)):
                continue
            found = ID.search(before)
            line = re.sub(r"\bID\b", found[0], command.line) if found else command.line
            words = ["bash", "-c", line] if SHELL.search(line) else shlex.split(line, comments=True)
            ended = run_offline(*words, cwd=tmp_path)
            before = ended.stdout
            code = 128 - ended.returncode if ended.returncode < 0 else ended.returncode
            assert code == command.exit_code, f"$ {command.line}\n{ended.stdout}"
            if command.output.strip():
                said = f"$ {command.line}\nshown:\n{command.output}\nis:\n{ended.stdout}"
                assert same(command.output, ended.stdout), said
            todo -= {name for name in todo if name in command.line}
    for name in sorted(todo):  # a file that no command runs, and no other file may import
        ended = run_offline("python", name, cwd=tmp_path)
        assert ended.returncode == 0, f"{name}\n{ended.stdout}"


@every_page
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = blocks(text)
    assert {block.language for block in found} <= LANGUAGES
    assert text.count("```") == 2 * len(found), "a fence that is indented, or has unknown options"
    assert page.name != "README.md" or "title=" not in text, "it is not shown: name the file before"
    for block in found:
        if block.language == "console":
            assert commands(block.text), "a console block without a `$ ` command"


def test_the_first_page_gives_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, clone = [block for block in blocks(text) if block.language == "console"][:2]
    assert [command.line for command in commands(first.text)] == [
        'pip install "rollcage[cli]"',
        "rollcage quickstart",
    ]
    assert [command.line for command in commands(clone.text)] == [
        "pip install nox uv && nox -s demo",
        "nox",
    ]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_sessions_that_are_named_exist(page: str) -> None:
    there = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"nox -s \"?(\w+)", text)) <= there


every_translation = pytest.mark.parametrize(
    ("page", "translated"), translated.PAIRS.items(), ids=lambda path: path.name
)


@every_translation
def test_a_translation_has_the_same_code_and_sections(page: Path, translated: Path) -> None:
    assert code_of(translated) == code_of(page), "run: python -m website.translated"
    assert headings_of(translated) == headings_of(page)
    if page.name == "README.md":  # where the file of a block is named before it
        named = re.findall(r"^`(\S+)`:$", page.read_text(encoding="utf-8"), re.MULTILINE)
        text = translated.read_text(encoding="utf-8")
        assert named == re.findall("^`(\\S+)`\N{FULLWIDTH COLON}$", text, re.MULTILINE)


@every_translation
def test_a_translation_is_complete(page: Path, translated: Path) -> None:
    """It has as many rows and items, the same links and words in code, and no English left."""
    texts = [each.read_text(encoding="utf-8") for each in (page, translated)]
    skipped = r"^```.*?^```$|^\[(?:中文|English)\]\([^\n]*$"
    prose = [re.sub(skipped, "", text, flags=re.DOTALL | re.MULTILINE) for text in texts]
    code = r"`[^`\n]+`"
    for rows in (r"^\|", r"^\* "):
        english, other = (len(re.findall(rows, text, re.MULTILINE)) for text in prose)
        assert english == other, rows
    for what in (code, r"\]\(([^)]+)\)"):
        english_names, others = (set(re.findall(what, text)) for text in prose)
        assert english_names == others
    long = re.findall(r"(?:\b[A-Za-z][a-z']+[ ,.]+){5,}", re.sub(code, "", prose[1]))
    assert not long, "five words of English in a row"


TRACE_FORMAT = (ROOT / "docs/trace-format.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Return the cells of the first table behind a text of the page on the format."""
    lines = TRACE_FORMAT.partition(f"\n{heading}\n")[2].split("\n|---", 1)[1].splitlines()[1:]
    rows = [line.strip("|").split(" | ") for line in lines[: lines.index("")]]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_lines_are_those_of_the_schema() -> None:
    shared = ("event", "time", "hash", "replayed", "restarted", "left")
    found = {line.strip("`"): set(own.split(", ")) - {""} for line, _, own in table("## Lines")}
    expected = {}
    for model in json_schema()["$defs"].values():
        name = model.get("properties", {}).get("event", {}).get("const")
        if name is not None:
            expected[name] = {
                field if field in model["required"] else f"{field}?"
                for field in model["properties"]
                if field not in shared
            }
    assert found == expected


def test_the_values_are_those_of_the_codec() -> None:
    named = {tag.strip("`") for row in table("## Values") for tag in row[0].split(", ")}
    references = {"blob", "messages"}  # to a file, and to an earlier step
    assert named == {*decoding._DECODERS, *references}


@pytest.mark.parametrize(
    "page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "examples/README.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


TROUBLES = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def test_each_error_has_cause_and_next_step() -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]* \| `(\w+)` \| (.+) \| (.+) \|$", TROUBLES, re.MULTILINE)
    found = {(code, name) for code, name, _, _ in rows}
    kinds = [getattr(errors, name) for name in errors.__all__]
    raised = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
    warned = {kind.__name__ for kind in raised if issubclass(kind, Warning)}
    expected = {(e.code, e.__name__) for e in raised if issubclass(e, errors.RollcageError)}
    assert found == expected
    assert len(rows) == len(expected), "an error stands there twice"
    assert all(f"`{name}`" in TROUBLES for name in warned)


def test_the_commands_of_next_steps_exist() -> None:
    there = {*app._COMMANDS, *app._ELSEWHERE, *app._installed().names}
    named = set(re.findall(r"`rollcage (\w+)", TROUBLES))
    assert {"resolve", "undo", "abandon", "approve"} <= named
    assert named <= there
