"""`rollcage backtest`: a change held against many recorded runs, with thresholds."""

import html.parser
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import ForkEnded, Session, tool
from rollcage_fork import Fork
from rollcage_views.html import script, stylesheet

Cli = Callable[..., Any]

POLICY = """
version = 1
name = "careful"
default = "allow"
[prices]
backtest_pay = 2.5
[[rules]]
id = "dear"
tools = ["backtest_pay"]
when = "args.amount > 50"
decision = "deny"
reason = "too dear"
[[rules]]
id = "look-at-mails"
tools = ["backtest_mail"]
decision = "ask"
reason = "somebody looks at mails"
"""


@tool(effect="write")
def backtest_pay(amount: int) -> str:
    return "paid"


@tool(effect="write")
def backtest_mail(to: str) -> str:
    return "sent"


@pytest.fixture
def recorded(store: Path) -> list[str]:
    """Two jobs, one of them resumed, and a fork, which is none."""
    runs = []
    for name, amount in (("small", 10), ("large", 90)):
        with Session(name, store=store) as session:
            backtest_pay(amount=amount)
            backtest_mail(to="<b>ann</b>")
        runs.append(session.run_id)
    with pytest.raises(KeyboardInterrupt), Session("resumed", store=store):
        backtest_pay(amount=1)
        raise KeyboardInterrupt
    with Session("resumed", store=store) as session:
        backtest_pay(amount=1)
    runs.append(session.run_id)
    with pytest.raises(ForkEnded), Session("large", store=store, stages=[Fork(runs[1])]):
        backtest_pay(amount=1000)
    return runs


def test_a_policy_is_held_against_each_job(cli: Cli, recorded: list[str], tmp_path: Path) -> None:
    file = tmp_path / "careful.toml"
    file.write_text(POLICY)
    result = cli("backtest", "--policy", str(file), "--json")
    assert result.code == 0  # without a threshold, nothing fails
    rows = {row["run"]: row for row in result.data["runs"]}
    assert [*rows] == recorded
    counts = [(r["calls"], r["blocked"], r["asked"], r["cost"]) for r in rows.values()]
    assert counts == [(2, 0, 1, 2.5), (2, 1, 1, 0.0), (1, 0, 0, 2.5)]
    assert rows[recorded[1]]["first"] == "step 1, backtest_pay: allow → deny"
    assert result.data["totals"]["blocked"] == 1
    text = cli("backtest", "--policy", str(file)).out
    assert "policy careful: 3 runs, 5 calls, 1 blocked, 2 asked" in text


def test_thresholds_and_the_choice_of_runs(cli: Cli, recorded: list[str], tmp_path: Path) -> None:
    file = tmp_path / "careful.toml"
    file.write_text(POLICY)
    policy = ("backtest", "--policy", str(file))
    assert cli(*policy, "--max-blocked", "1", "--max-newly-allowed", "0").code == 0
    result = cli(*policy, "--max-blocked", "0")
    assert result.code == 1
    assert "over the limit: 1 blocked, at most 0 allowed" in result.out
    for choice in (("--name", "sm*"), ("--only", recorded[0]), ("--limit", "1")):
        assert cli(*policy, *choice, "--max-blocked", "0").code == 0
    assert len(cli(*policy, "--since", "2099-01-01", "--json").data["runs"]) == 0
    assert len(cli(*policy, "--status", "ok", "--json").data["runs"]) == 3
    assert cli(*policy, "--model", "m").code == 2
    assert cli("backtest").code == 2


def test_a_call_that_cannot_be_judged_fails_the_thresholds(
    cli: Cli, recorded: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "named.toml"
    file.write_text(POLICY.replace("args.amount > 50", "!named('ann@example.com')"))
    policy = ("backtest", "--policy", str(file))
    assert cli(*policy).code == 0
    result = cli(*policy, "--max-blocked", "0", "--json")
    assert result.code == 1
    assert result.data["totals"]["blocked"] == 0
    assert result.data["over"] == {"unknown": 0}
    assert "unknown, at most 0 allowed" in cli(*policy, "--max-asked", "9").out
    assert cli(*policy, "--max-blocked", "0", "--max-unknown", "9").code == 0
    assert cli(*policy, "--max-writes", "9").code == 0


def test_a_report_is_one_file_in_which_all_that_is_recorded_is_text(
    cli: Cli, store: Path, tmp_path: Path
) -> None:
    with Session("<script>alert(1)</script>", store=store):
        backtest_pay(amount=90)
    file, report = tmp_path / "careful.toml", tmp_path / "report.html"
    file.write_text(POLICY.replace("careful", "<img src=x>"))
    cli("backtest", "--policy", str(file), "--html", str(report), "--max-blocked", "0")
    tags: Counter[str] = Counter()

    class Tags(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags[tag] += 1
            assert not {name for name, _ in attrs} & {"src", "href", "onclick"}

    page = report.read_text()
    Tags().feed(page)
    assert set(tags) == {
        "html", "head", "meta", "title", "style", "body", "h1", "p", "table", "tr", "th", "td",
        "code", "header", "main", "span", "fieldset", "legend", "label", "input", "div", "thead",
        "tbody", "script",
    }  # fmt: skip
    assert tags["script"] == tags["style"] == 1  # which all pages have
    assert f"<style>{stylesheet()}</style>" in page
    assert f"<script>{script()}</script>" in page
    assert "&lt;script&gt;" in page
    assert "over the limit: 1 blocked, at most 0 allowed" in page


def test_a_report_that_cant_be_written_is_reported_of(
    cli: Cli, recorded: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "careful.toml"
    file.write_text(POLICY)
    result = cli("backtest", "--policy", str(file), "--html", str(tmp_path / "none" / "report"))
    assert result.code == 5
    assert "report can't be written: No such file or directory" in " ".join(result.err.split())


def test_a_report_takes_the_place_of_another_with_force_only_and_goes_to_stdout(
    cli: Cli, recorded: list[str], tmp_path: Path
) -> None:
    file, report = tmp_path / "careful.toml", tmp_path / "report.html"
    file.write_text(POLICY)
    report.write_text("somebody's own")
    asked = "backtest", "--policy", str(file), "--max-blocked", "0"
    refused = cli(*asked, "--html", str(report))
    assert refused.code == 2
    assert "--force replaces it" in refused.err
    assert report.read_text() == "somebody's own"
    assert cli(*asked, "--html", str(report), "--force").code == 1
    assert report.read_text().startswith("<!DOCTYPE html>")
    piped = cli(*asked, "--html", "-")
    assert piped.code == 1
    assert piped.out == report.read_text()
    assert "over the limit" in piped.err
    assert cli(*asked, "--html", "-", "--json").code == 2
    assert sorted(each.name for each in tmp_path.glob("*.part")) == []


def test_a_run_that_is_damaged_is_reported_of(cli: Cli, store: Path, recorded: list[str]) -> None:
    trace = next(store.rglob(f"{recorded[0]}.jsonl"))
    data = trace.read_bytes()
    trace.write_bytes(data.replace(b'"paid"', b'"PAID"'))
    file = store / ".." / "careful.toml"
    file.write_text(POLICY)
    result = cli("backtest", "--policy", str(file), "--json")
    assert result.code == 3
    assert [bool(row["error"]) for row in result.data["runs"]] == [True, False, False]
    trace.write_bytes(data)


def test_other_tools_run_the_program_once_for_each_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLCAGE_STORE", "runs")
    Path("backtest_agent.py").write_text(
        "from rollcage import Session, tool\n"
        '@tool(effect="read")\ndef quote(city: str) -> int:\n    return len(city)\n'
        '@tool(effect="write")\ndef book(city: str) -> str:\n'
        '    open("booked", "a").write(city)\n    return city\n'
        "def main(city):\n"
        '    with Session("desk", store="runs", input=city):\n'
        "        if quote(city=city) < 5:\n            book(city=city)\n"
        'if __name__ == "__main__":\n    main("Rome")\n    main("Florence")\n'
    )
    Path("cheap_tools.py").write_text(
        'from rollcage import tool\n@tool(effect="read")\ndef quote(city: str) -> int:\n'
        "    return 1\n"
    )
    subprocess.run([sys.executable, "backtest_agent.py"], check=True)
    Path("booked").unlink()
    result = cli("backtest", "--tools", "cheap_tools", "--run", "backtest_agent:main", "--json")
    assert result.code == 0
    rome, florence = result.data["runs"]
    assert (rome["writes"], rome["first"], rome["ran"]) == ([], "step 1, quote: differs", 0)
    assert florence["writes"] == [{"name": "book", "args": {"city": "Florence"}}]
    assert florence["status"] == "would_write"
    assert not Path("booked").exists()
    again = ("backtest", "--tools", "cheap_tools", "--run", "backtest_agent:main")
    limited = cli(*again, "--max-writes", "0", "--limit", "1")
    assert limited.code == 1
    assert "would write book(" in limited.out


def test_a_program_that_fails_as_it_did_fails_no_test(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLCAGE_STORE", "runs")
    Path("failing_agent.py").write_text(
        "from rollcage import Session, tool\n"
        '@tool(effect="read")\ndef find(city: str) -> str:\n    raise LookupError(city)\n'
        'def main():\n    with Session("lost", store="runs"):\n        find(city="Atlantis")\n'
    )
    Path("other_tools.py").write_text(
        'from rollcage import tool\n@tool(effect="read")\ndef find(city: str) -> str:\n'
        "    raise PermissionError(city)\n"
    )
    main = [sys.executable, "-c", "import failing_agent; failing_agent.main()"]
    assert subprocess.run(main, check=False, capture_output=True).returncode == 1
    test = ("backtest", "--run", "failing_agent:main", "--max-failed", "0", "--json")
    as_it_did = cli(*test)
    assert (as_it_did.code, as_it_did.data["totals"]["failed"]) == (0, 0)
    otherwise = cli(*test, "--tools", "other_tools")
    assert (otherwise.code, otherwise.data["totals"]["failed"]) == (1, 1)
