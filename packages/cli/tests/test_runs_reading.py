"""Every command that reads runs reads them: all attempts at a run in one story."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import shop_runs as shop
from cuts import cut_log
from rollcage import Session, open_store
from rollcage.errors import ArgumentsInvalid, Blocked
from rollcage.gate import Verdict
from rollcage.stages.orders import pause_run
from rollcage.trace.recorded import trace_of
from rollcage_views import hits_of, read_run


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.shelf.clear()
    shop.program_file(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def rows(out: str, title: str) -> list[list[str]]:
    """The rows of the table that begins with this title, cut into cells."""
    lines = out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith(title))
    found = []
    for line in lines[start + 1 :]:
        if not line.strip():
            break
        found.append(re.split(r"\s{2,}", line.strip()))
    return found


def test_a_run_of_three_attempts_is_one_story(cli: Any, store: Path) -> None:
    shop.resumed_twice(store)
    out = cli("show", "@job").out
    assert "ok, 3 attempts, started" in out
    attempts = rows(out, "attempt  status")
    assert [(row[0], row[1]) for row in attempts] == [("1", "error"), ("2", "error"), ("3", "ok")]
    assert attempts[0][3:] == ["2", "ConnectionError…"]
    assert attempts[1][3:] == ["1-2", "1", "ConnectionError…"]
    assert attempts[2][3:] == ["1-3", "1"]
    assert [row[:3] for row in rows(out, "step  attempt")] == [
        ["1", "1", 'shop.look(item="pen")'],
        ["2", "1", 'shop.add(item="pen")'],
        ["3", "2", 'shop.add(item="ink")'],
        ["4", "3", 'shop.mail(to="ann", b…'],
    ]
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out


def test_a_run_of_one_attempt_has_no_column_for_it(cli: Any, store: Path) -> None:
    shop.finished(store)
    out = cli("show").out
    assert "ok, record, started" in out
    assert "attempt" not in out


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (shop.finished, ["ran", "ran", "ran"]),
        (shop.asynchronous, ["ran", "ran"]),
        (shop.died, ["ran", "unknown"]),
        (shop.unclear, ["ran", "failed, unclear"]),
        (shop.undone, ["ran", "ran", "ran, undone", "ran"]),
        (shop.asked, ["ran", "waiting"]),
        (shop.inner, ["ran", "ran", "ran"]),
        (
            shop.branches,
            ["ran", "ran", "ran", "ran", "ran", "failed", "ran, rolled back", "ran"],
        ),
    ],
)  # fmt: skip
def test_what_became_of_each_step(cli: Any, store: Path, make: Any, states: list[str]) -> None:
    make(store)
    out = cli("show", "--limit", "0").out
    shown = [line.rstrip().rpartition("  ")[2] for line in out.splitlines()]
    over = next(n for n, line in enumerate(out.splitlines()) if "over " in line)
    assert shown[over + 1 : over + 1 + len(states)] == states
    told = cli("verify", "latest")
    assert told.code == 0, told.out
    assert "whole" in told.out


def test_blocks_are_called_by_their_kind(cli: Any, store: Path) -> None:
    shop.branches(store)
    out = cli("show", "--tree").out
    assert "1 ran branch left" in out
    assert "6 failed transaction" in out
    assert '5 ran shop.add(item="ink")' in out
    shop.inner(store, "outer")
    assert "2 ran session helper" in cli("show", "@outer", "--tree").out


def test_what_is_borrowed_is_told_from_what_ran(cli: Any, store: Path) -> None:
    run = shop.finished(store)
    fork = shop.forked(store, run)
    out = cli("show", fork).out
    assert f"ok, fork, fork of {run}" in out.replace("\n", " ")
    states = [row[2] for row in rows(out, "step  call")]
    assert states == ["hit", "simulated", "ran"]


def test_an_effect_that_was_made_elsewhere_says_so(cli: Any, store: Path) -> None:
    for name in ("one", "two"):
        with Session(name, store=store):
            shop.refund(1)
    assert rows(cli("show", "@two").out, "step  call")[0][2] == "hit, once"
    assert "once: refund/1" in cli("show", "@two", "--step", "1").out


def test_what_somebody_has_to_look_after(cli: Any, store: Path) -> None:
    died, unclear, lossy = (make(store, make.__name__) for make in (
        shop.died, shop.unclear, shop.lossy))  # fmt: skip
    listed = cli("runs").out
    assert re.search(r"died .*1 unknown", listed)
    assert re.search(r"unclear .*1 unclear", listed)
    assert f"rollcage resolve {died} 2 --happened; or, if not:" in cli("show", died).out
    assert "failed, and it may have happened" in cli("show", unclear).out
    assert f"rollcage resolve {lossy} 1 --happened --result JSON" in cli("show", lossy).out
    data = {row["name"]: row for row in cli("runs", "--json").data["runs"]}
    assert data["died"]["unknown"] == [[died, 2]]
    assert data["unclear"]["unclear"] == [[unclear, 2]]


def test_what_another_program_left_behind(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    with Session("job", store=store, on_divergence="warn"):
        shop.look("pen")
        shop.mail("ann")
    out = cli("show", run).out
    assert "ran, left behind" in out
    assert "Left behind by a new write, and still done: 1 effect, step 2" in out
    left = cli("show", run, "--state", "left behind", "--json").data["steps"]
    assert [row["step"] for row in left] == [2]


def test_a_partial_attempt_lists_what_it_never_asked_for(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    with Session("job", store=store):
        shop.look("pen")
    out = cli("show", run).out
    assert "Never asked for: 1 effect, step 2 (shop.add)" in out
    assert f"rollcage undo {run}; to keep them: rollcage abandon {run}" in out
    told = cli("abandon", run, "--by", "ann", "--reason", "moved away")
    assert told.code == 0, told.err
    assert "1 effect of the run stays done" in told.out
    again = cli("show", run).out
    assert "abandoned by ann" in again
    assert "moved away" in again


def test_a_paused_run_says_how_it_goes_on(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    pause_run(store, run, by="ann", reason="lunch")
    out = cli("show", run).out
    assert f"rollcage unpause {run}" in out
    assert "paused by ann" in out


def test_jobs_tell_their_attempts(cli: Any, store: Path, record: Any) -> None:
    record("old job")
    run = shop.resumed_twice(store, "new job")
    listed = cli("jobs").out
    assert f"2 before → ok {run[-8:]}" in listed
    assert "old job" in listed


def test_two_runs_are_compared(cli: Any, store: Path) -> None:
    one, other = shop.crashed(store, "one"), shop.resumed_twice(store, "two")
    out = cli("diff", one, other).out
    assert "+ — / 3  shop.add  (the first difference)" in out
    assert "4 steps compared, 2 differ" in out
    assert cli("diff", one, one).code == 0


def test_runs_are_audited_with_what_was_undone(cli: Any, store: Path) -> None:
    one, new = shop.finished(store), shop.undone(store, "other")
    told = [orjson.loads(x) for x in cli("audit", one, new, "-f", "jsonl").out.splitlines()]
    assert {each["run"] for each in told if "run" in each} == {one, new}
    text = cli("audit", new).out
    assert "shop.cancel" in text
    assert "1 compensated" in text


def test_a_run_is_watched(cli: Any, store: Path) -> None:
    run = shop.resumed_twice(store)
    out = cli("watch", "job").out.splitlines()
    assert [line.split()[1] for line in out if re.match(r"\s+\d", line)] == ["ran"] * 4
    assert [line.strip() for line in out if "=" in line[:5]] == ["= attempt 2", "= attempt 3"]
    assert out[-1] == f"run {run}: ok"
    shop.asked(store, "other")
    waits = cli("watch", "other")
    assert waits.code == 6
    assert '? shop.mail(to="ann", body="hello") waits for approval' in waits.out


@pytest.mark.parametrize("options", [[], ["--no-values"], ["--redact", "item"]])
@pytest.mark.parametrize(
    "make",
    [shop.branches, shop.undone, shop.asked, shop.resumed_twice, shop.died, shop.claimed],
)
def test_an_export_verifies_and_shows_the_same_steps(
    cli: Any, store: Path, tmp_path: Path, make: Any, options: list[str]
) -> None:
    run = make(store)
    file = tmp_path / "out.jsonl"
    file.write_text(cli("export", run, *options).out)
    told = cli("verify", file)
    assert told.code == 0, told.out
    here, there = (cli("show", each, "--json").data for each in (run, file))
    for field in ("step", "name", "state", "undone", "attempt", "parent", "rolled"):
        assert [s[field] for s in here["steps"]] == [s[field] for s in there["steps"]]
    if options:
        assert all(s["key"] != t["key"] for s, t in zip(here["steps"], there["steps"], strict=True)
                   if s["kind"] != "branch")  # fmt: skip


def test_an_export_without_values_has_none(cli: Any, store: Path) -> None:
    with Session("job", store=store, input={"order": "for-zoe"}):
        shop.refund(4711)
        shop.add("secretitem")
    out = cli("export", "latest", "--no-values").out
    assert not any(word in out for word in ("4711", "secretitem", "for-zoe"))
    some = cli("export", "latest", "--redact", "item").out
    assert "secretitem" not in some
    assert "4711" in some


def test_a_changed_line_is_found(cli: Any, store: Path) -> None:
    run = shop.resumed_twice(store)
    (path,) = store.glob(f"logs/{run}.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:7], lines[7].replace(b"ink", b"inc"), *lines[8:]]))
    for command in ("verify", "show", "diff"):
        told = cli(command, run, *([run] if command == "diff" else []))
        assert told.code == 3
    path.write_bytes(b"".join(lines[:8]))
    assert cli("verify", run).code == 3  # it had gone on
    cut_log(path, 8)  # it died between an intent and its outcome
    told = cli("verify", run)
    assert told.code == 0
    assert "lines missing from its end would not show" in told.out
    assert cli("show", run, "--json").data["status"] == "unfinished"


def test_a_key_that_is_not_its_arguments_is_found(cli: Any, store: Path, tmp_path: Path) -> None:
    from rollcage.trace.chain import chained

    run = shop.finished(store)
    events = [orjson.loads(line) for line in open_store(store).read(run)]
    for event in events:
        del event["hash"]
    events[3]["args"] = {"item": "gold"}
    forged = tmp_path / f"{run}.jsonl"
    forged.write_bytes(b"".join(chained(events)))
    told = cli("verify", forged)
    assert told.code == 3
    assert "key: step 2: its key is not its arguments'" in told.out


def test_a_log_in_a_store_is_found_by_its_path(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    path = store / "logs" / f"{run}.jsonl"
    assert cli("show", path, "--json").data["run"]["run"] == run
    assert cli("abandon", path, "--json").data["abandoned"] is True


def test_a_page_of_a_run_is_written(cli: Any, store: Path, tmp_path: Path) -> None:
    run = shop.resumed_twice(store)
    page = tmp_path / "page.html"
    assert cli("show", run, "--html", page).code == 0
    text = page.read_text()
    assert "shop.mail" in text
    assert run in text


def test_hostile_text_stays_text(cli: Any, store: Path, evil: str) -> None:
    with pytest.raises(ValueError, match="x"), Session(evil, store=store) as session:
        shop.add(evil)
        with session.branch(evil):
            shop.add("pen")
        raise ValueError(f"x {evil}")
    for words in (
        ["show"],
        ["show", "--tree"],
        ["runs"],
        ["jobs"],
        ["watch"],
        ["verify", "latest"],
    ):
        out = cli(*words).out
        assert "\x1b" not in out
        assert "\u202e" not in out


def outside(call: Any) -> Verdict | None:
    if call.args.get("item") == "/etc/passwd":
        return Verdict(decision="deny", reason="outside of it", code="path_escape", rule="paths")
    return None


def test_what_a_rule_denied_is_audited_as_that(cli: Any, store: Path) -> None:
    with Session("job", store=store, gate=[outside]) as session:
        shop.add("pen")
        with pytest.raises(Blocked):
            shop.add("/etc/passwd")
        with pytest.raises(ArgumentsInvalid):
            session.call(shop.add, item=3)
    out = cli("audit", "latest").out
    assert "Decisions: 1 allow, 1 deny" in out
    assert "2 calls, 1 refused in 1 of them" in out
    told = [orjson.loads(x) for x in cli("audit", "latest", "-f", "jsonl").out.splitlines()]
    (denied,) = (each for each in told if each.get("state") == "blocked")
    assert (denied["decision"], denied["rule"], denied["code"]) == ("deny", "paths", "path_escape")
    (hit,) = hits_of(read_run(trace_of(store, session.run_id)))
    assert (hit.name, hit.state, hit.rule) == ("shop.add", "blocked", "paths")
    shown = cli("show").out
    assert "2 calls refused" in shown
    assert "path_escape: outside of it" in shown
