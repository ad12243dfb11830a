"""`rollcage audit`: who called what, decided by which rule, what was undone; in every format."""

import csv
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markup import Markup
from rollcage import (
    Approval,
    ApprovalRequired,
    Blocked,
    QueueApprover,
    Session,
    Verdict,
    compensate,
    tool,
    undo_run,
)
from rollcage.trace.chain import ROOT, chained
from rollcage_cli.errors import CORRUPT, USAGE

Cli = Callable[..., Any]
Record = Callable[..., str]

FORMS = ["table", "jsonl", "csv", "md", "html"]
GITHUB = "ghp" + "_" + "a1B2" * 9
box: dict[str, str] = {}


def as_form(form: str) -> tuple[str, ...]:
    """The options for an audit in this form on stdout."""
    return ("--html", "-") if form == "html" else ("--format", form)


@tool
def take_kept(key: str) -> str:
    return box.pop(key, "nothing")


@tool(undo=lambda args: [compensate(take_kept, key=args["key"])])
def keep(key: str, text: str) -> str:
    box[key] = text
    return "kept"


@tool(effect="read")
def read(key: str) -> str:
    return box.get(key, "")


def lines(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines()]


def calls(result: Any) -> list[dict[str, Any]]:
    return [line for line in lines(result) if line["kind"] == "call"]


@pytest.fixture
def audit(cli: Cli) -> Cli:
    """An audit as JSON Lines: its entries, the summary last."""

    def audit(*arguments: object) -> list[dict[str, Any]]:
        result = cli("audit", *arguments, "--format", "jsonl")
        assert result.code == 0, result.err
        return lines(result)

    return audit


@pytest.fixture
def kept(store: Path) -> str:
    """A run of two writes, a refused one and an agent's read."""

    def rule(view: Any) -> Verdict | None:
        return Verdict.deny("outside", code="path_escape") if view.args["key"] == "/" else None

    with Session("keeper", store=store, gate=[rule], actor="ann") as session:
        keep("a", "one")
        keep("b", "two")
        with pytest.raises(Blocked):
            keep("/", "three")
        with session.place(agent="scout"):
            read("a")
    return session.run_id


# --- what is told --------------------------------------------------------------------------------


def test_each_call_with_its_decision(kept: str, audit: Cli) -> None:
    *told, summary = audit()
    assert [(e["step"], e["tool"], e["decision"], e["state"]) for e in told] == [
        (1, "keep", "allow", "ran"),
        (2, "keep", "allow", "ran"),
        (0, "keep", "deny", "blocked"),
        (3, "read", "allow", "ran"),
    ]
    assert {(e["run"], e["job"], e["actor"]) for e in told} == {(kept, "keeper", "ann")}
    assert told[0]["args"] == 'key="a", text="one"'
    assert told[0]["outcome"] == '"kept"'
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", told[0]["time"])
    assert told[2]["rule"].endswith("rule")
    assert (told[2]["code"], told[2]["reason"]) == ("path_escape", "outside")
    assert told[3]["agent"] == "scout"
    assert summary["kind"] == "summary"
    assert summary["decisions"] == {"allow": 3, "deny": 1}
    assert summary["tools"] == {"keep": {"ran": 2, "blocked": 1}, "read": {"ran": 1}}
    assert [*summary["rules"].values()] == [1]


def test_an_undo_is_reported_where_it_was_made_and_at_what_it_undid(
    kept: str, store: Path, audit: Cli
) -> None:
    assert undo_run(store, kept, to=1).complete
    *told, summary = audit()
    assert [e["undone"] for e in told if e["kind"] == "call" and e["step"] in (1, 2)] == [
        "",
        "compensated",
    ]
    (undo,) = (e for e in told if e["kind"] == "undo")
    assert (undo["tool"], undo["state"], undo["undoes_step"]) == ("keep", "compensated", 2)
    (back,) = (e for e in told if e["tool"] == "take_kept")
    assert (back["undoes_run"], back["undoes_step"]) == (kept, 2)
    assert summary["undos"] == {"compensated": 1}


def test_approvals_say_by_whom(store: Path, audit: Cli) -> None:
    def ask(view: Any) -> Verdict | None:
        return Verdict.ask(f"{view.name} is asked for")

    def approver(request: Any) -> Approval:
        return Approval(request.args["key"] == "a", by="bob", reason="as agreed")

    with Session("job", store=store, gate=[ask], approver=approver) as session:
        keep("a", "one")
        with pytest.raises(Blocked):
            keep("b", "two")
    *told, summary = audit(session.run_id)
    yes, no = (e for e in told if e["kind"] == "call")
    assert (yes["decision"], yes["by"], yes["state"]) == ("ask", "bob", "ran")
    assert (no["by"], no["state"], no["reason"]) == ("bob", "blocked", "as agreed")
    asked = [e for e in told if e["kind"] == "approval"]
    assert [(e["state"], e["by"], e["tool"]) for e in asked] == [
        ("approved", "bob", "keep"),
        ("rejected", "bob", "keep"),
    ]
    assert asked[0]["approval"] == yes["approval"] != ""
    assert summary["approvals"] == {"approved": 1, "rejected": 1}


def test_a_request_that_was_decided_is_no_longer_pending(store: Path, cli: Cli, audit: Cli) -> None:
    def ask(view: Any) -> Verdict | None:
        return Verdict.ask(f"{view.name} is asked for")

    def run() -> None:
        with Session("job", store=store, gate=[ask], approver=QueueApprover(store)):
            keep("a", "one")

    def approvals() -> list[tuple[str, str]]:
        return [(e["approval"], e["state"]) for e in audit() if e["kind"] == "approval"]

    with pytest.raises(ApprovalRequired):
        run()
    ((request, state),) = approvals()
    assert state == "pending"
    assert cli("approve", request, "--by", "bob").code == 0
    run()
    assert approvals() == [(request, "approved")]
    assert audit()[-1]["open"] == 0


def test_what_somebody_has_to_look_at_is_listed_at_the_end(dead: str, cli: Cli, audit: Cli) -> None:
    *told, summary = audit()
    assert [e["state"] for e in told] == ["ran", "unknown"]
    assert summary["open"] == 1
    shown = cli("audit")
    assert shown.out.rstrip().splitlines()[-1].startswith(f"  step 2 of run {dead}: pay: unknown")


def test_a_stop_is_reported(store: Path, cli: Cli, audit: Cli) -> None:
    with pytest.raises(Exception, match="stop"), Session("job", store=store) as session:
        keep("a", "one")
        assert cli("stop", session.run_id, "--reason", "enough", "--by", "ann").code == 0
        keep("b", "two")
    *told, summary = audit()
    (stop,) = (e for e in told if e["kind"] == "stop")
    assert (stop["by"], stop["reason"]) == ("ann", "enough")
    assert summary["open"] == 1


# --- which of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--tool", "re*"], [3]),
        (["--tool", "read", "--tool", "keep"], [1, 2, 0, 3]),
        (["--agent", "scout"], [3]),
        (["--decision", "deny"], [0]),
        (["--decision", "deny", "--decision", "allow"], [1, 2, 0, 3]),
        (["--rule", "*rule"], [0]),
        (["--rule", "none"], []),
        (["--name", "keep*"], [1, 2, 0, 3]),
        (["--name", "other"], []),
        (["--since", "1h"], [1, 2, 0, 3]),
        (["--since", "2200-01-01"], []),
        (["--until", "2200-01-01T12:00Z"], [1, 2, 0, 3]),
        (["--until", "1h"], []),
        (["--undone"], []),
    ],
    ids=lambda given: " ".join(map(str, given)),
)
def test_filters(kept: str, audit: Cli, options: list[str], steps: list[int]) -> None:
    assert [e["step"] for e in audit(*options) if e["kind"] == "call"] == steps


def test_what_was_undone(kept: str, store: Path, audit: Cli) -> None:
    undo_run(store, kept, to=1)
    assert [(e["kind"], e["tool"]) for e in audit("--undone")[:-1]] == [
        ("call", "keep"),
        ("undo", "keep"),
    ]


def test_runs_are_named_as_everywhere(kept: str, record: Record, audit: Cli, store: Path) -> None:
    other = record("other")
    path = store / "logs" / f"{other}.jsonl"
    for references, runs in (
        ([], {kept, other}),
        ([kept], {kept}),
        ([kept[-12:], "@other"], {kept, other}),
        (["latest", "latest"], {other}),
        ([path], {other}),
    ):
        assert {e["run"] for e in audit(*references)[:-1]} == runs


@pytest.mark.parametrize("given", ["yesterday", "5 d", "99999999w", "2026-13-01", ""])
def test_a_time_that_is_none(given: str, cli: Cli) -> None:
    result = cli("audit", "--since", given)
    assert result.code == USAGE
    assert "is not a time" in result.err


def test_no_runs_are_no_error(cli: Cli) -> None:
    result = cli("audit")
    assert result.code == 0
    assert "0 runs" in result.out


def test_a_run_that_is_not_there(cli: Cli, kept: str) -> None:
    assert cli("audit", "@nobody").code == USAGE


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_run_is_reported_and_the_others_go_on(
    form: str, kept: str, record: Record, cli: Cli, edit: Callable[..., None]
) -> None:
    broken = record("broken")
    edit(broken, lambda trace: [*trace[:3], trace[3].replace(b'"step"', b'"stop"'), *trace[4:]])
    result = cli("audit", *as_form(form))
    assert result.code == CORRUPT
    assert f"run {broken} can't be read" in result.err
    assert "line 4" in result.err
    assert broken in result.out
    assert kept in result.out


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-2]


def rewritten(lines: list[bytes]) -> list[bytes]:
    """Other arguments, and the chain made anew."""
    events = [json.loads(line.replace(b"a.txt", b"z.txt")) for line in lines]
    return chained([{n: v for n, v in each.items() if n != "hash"} for each in events], ROOT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("attack", "says"), [
    (cut, "the log ends here"), (rewritten, "its key is not its arguments'"),
])  # fmt: skip
def test_what_verify_refuses_is_no_fact_in_an_audit(
    form: str,
    attack: Any,
    says: str,
    kept: str,
    record: Record,
    cli: Cli,
    edit: Callable[..., None],
) -> None:
    forged = record("forged")
    edit(forged, attack)
    assert cli("verify", forged).code == CORRUPT
    for runs in ((), (forged, kept)):
        result = cli("audit", *runs, *as_form(form))
        assert result.code == CORRUPT
        assert says in result.err
        assert kept[:8] in result.out
        assert ".txt" not in result.out


# --- formats -------------------------------------------------------------------------------------


@pytest.fixture
def hostile(store: Path, evil: str) -> str:
    """A run whose texts would act on each of the formats."""
    texts = (
        evil, "=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\uff1d1", 'a\r\nb,c"d',
        "<script>alert(1)</script>", "</table><img src=x onerror=alert(1)>", "{{ 7 * 7 }}",
        "| a | [b](https://evil.example) ![c](//d) `e` **f** <b>g</b>",
    )  # fmt: skip

    def rule(view: Any) -> Verdict | None:
        return Verdict.deny(view.args["text"]) if view.args["key"] == "no" else None

    with Session("=job<script>", store=store, gate=[rule]) as session:
        for text in texts:
            with session.place(agent=text):
                keep("yes", text)
                with pytest.raises(Blocked):
                    keep("no", text)
    return session.run_id


def test_no_cell_of_a_csv_is_a_formula(hostile: str, cli: Cli) -> None:
    text = cli("audit", "--format", "csv").out
    assert text.splitlines()[0].startswith('"kind","time","run","job"')
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 25
    for cell in (cell for row in rows for cell in row):
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
        assert cell.isprintable()


def test_json_lines_are_one_object_a_line_of_one_shape(hostile: str, cli: Cli) -> None:
    result = cli("audit", "--format", "jsonl")
    assert result.out.isascii()
    told = lines(result)
    assert {line["schema"] for line in told} == {"rollcage.audit/1"}
    assert len({tuple(line) for line in told[:-1]}) == 1


def test_a_page_needs_nothing_and_runs_nothing(hostile: str, cli: Cli, tmp_path: Path) -> None:
    result = cli("audit", "--html", "audit.html")
    assert (result.code, result.out) == (0, "")
    text = (tmp_path / "audit.html").read_text(encoding="utf-8")
    page = Markup(text)
    page.check_alone()
    assert not {"img", "link", "iframe", "base", "object"} & page.tags
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert [given.get("role") for _, given in page.elements].count("row") == 1 + 24
    for said in ("<script>alert(1)</script>", "{{ 7 * 7 }}", "</table><img src=x"):
        assert said in page.text
    assert cli("audit", "--html", "audit.html").code == 2
    assert cli("audit", "--html", "audit.html", "--force").code == 0
    assert cli("audit", "--html", "-").out == (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert cli("audit", "--html", "-", "--format", "csv").code == 2


def test_a_markdown_report_shows_texts_as_they_are(hostile: str, cli: Cli) -> None:
    text = cli("audit", "--format", "md").out
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    unescaped = re.compile(r"(?<!\\)\|")
    table = rows[: 1 + 24]
    assert {len(unescaped.findall(row)) for row in table} == {8}
    assert not re.search(r"<[a-z/]", text)
    assert "](" not in text.replace("\\]", "")
    assert "https://" not in text


def test_nothing_reaches_the_terminal_that_commands_it(hostile: str, cli: Cli) -> None:
    for form in FORMS:
        out = cli("audit", *as_form(form)).out
        assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2028]", out), form


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.md", "a.markdown"])
def test_a_file_by_its_name(name: str, kept: str, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("what was there before")
    result = cli("audit", "--output", path)
    assert (result.code, result.out) == (0, "")
    assert kept in path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir() if p.name != ".rollcage"] == [name]


def test_a_file_whose_format_nobody_knows(kept: str, cli: Cli, tmp_path: Path) -> None:
    result = cli("audit", "-o", tmp_path / "a.xls")
    assert result.code == USAGE
    assert "--format" in result.err
    assert "--html" in cli("audit", "-o", tmp_path / "a.html").err
    assert cli("audit", "-o", tmp_path / "a.xls", "-f", "table").code == 0
    assert "keeper" in (tmp_path / "a.xls").read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written(kept: str, cli: Cli, tmp_path: Path) -> None:
    result = cli("audit", "-o", tmp_path / "no" / "a.md")
    assert result.code == 5
    assert "can't be written" in result.err


# --- credentials ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_credentials_are_taken_out_of_what_is_shown(form: str, store: Path, cli: Cli) -> None:
    @tool
    def use(value: Any) -> Any:
        return value

    def rule(view: Any) -> Verdict | None:
        return Verdict.deny(f"not {view.args['value']}") if view.args["value"] == GITHUB else None

    with Session(f"job {GITHUB}", store=store, gate=[rule]) as session:
        use(f"token {GITHUB} " + "x" * 5_000)
        use({"password": "correct-horse", 1: {"api_key": "battery-staple"}})
        use({GITHUB: b"key " + GITHUB.encode()})
        use(["-----BEGIN PRIVATE " + "KEY-----\nMIIEow", "x" * 3_990 + f" {GITHUB}"])
        with pytest.raises(Blocked), session.place(agent=f"agent {GITHUB}"):
            use(GITHUB)
    text = cli("audit", *as_form(form)).out
    for secret in (GITHUB, GITHUB[:20], "correct-horse", "battery-staple", "MIIEow"):
        assert secret not in text
    assert "GitHub Token" in text


# --- many runs -----------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_runs(store: Path, cli: Cli, tmp_path: Path) -> None:
    def peak() -> int:
        tracemalloc.start()
        try:
            assert cli("audit", "--html", tmp_path / "a.html", "--force").code == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def record(count: int) -> None:
        for _ in range(count):
            with Session("job", store=store, replay="off"):
                for _ in range(20):
                    keep("a", "x " * 10_000)

    record(2)
    peak()  # what is loaded once
    few = peak()
    record(10)
    assert peak() < 1.5 * few
