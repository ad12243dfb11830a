"""`rollcage diff`: steps aligned, what changed told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_the_same_job_twice(cli: Cli, record: Record) -> None:
    result = cli("diff", record(), record())
    assert (result.code, result.out.splitlines()[0]) == (0, "8 steps compared, none differ")


def test_two_runs_of_one_program_are_the_same(cli: Cli, store: Path, tools: Any) -> None:
    for name in ("job", "again"):
        with Session(name, store=store) as session:
            tools.outer("x")
            with session.branch("side"):
                tools.put("a", "b")
            with pytest.raises(ValueError, match="gone"):
                tools.fails("gone")
            tools.look("z")
    runs = [each["run"] for each in cli("runs", "--json").data["runs"]]
    for pair in (runs, runs[::-1]):
        result = cli("diff", *pair, "--json")
        assert (result.code, result.data["same"]) == (0, True)


def record_calls(store: Path, calls: list[tuple[Any, dict[str, Any]]]) -> str:
    with Session("job", store=store, replay="off") as session:
        for tool, arguments in calls:
            session.call(tool, **arguments)
    return session.run_id


def give(value: Any) -> Any:
    return next(ANSWERS)


ANSWERS = iter([{"a": [1, 2], "b": 1}, {"a": [1, 3, 4], "c": 1}])


def test_changed_arguments_and_results(cli: Cli, store: Path, tools: Any) -> None:
    given = (give, {"value": 1})
    looked, logged_in = (tools.look, {"path": "q"}), (tools.login, {"user": "u", "password": "p"})
    one = record_calls(store, [(tools.put, {"path": "a", "text": "x"}), given, looked])
    two = record_calls(store, [(tools.put, {"path": "a", "text": "yy"}), given, logged_in])
    result = cli("diff", one, two)
    assert result.code == 1
    assert 'args.text:           "x" → "yy"' in result.out
    assert "outcome.value.wrote: 1 → 2" in result.out
    assert "outcome.value.a[1]: 2 → 3" in result.out
    assert "outcome.value.a[2]: null → 4" in result.out
    assert "- 3 / —  look" in result.out
    assert "+ — / 3  login" in result.out
    assert "4 steps compared, 4 differ" in result.out
    data = cli("diff", one, two, "--json").data
    assert data.keys() == {
        "a", "b", "same", "compared", "steps", "first_difference", "standing",
    }  # fmt: skip
    assert data["first_difference"] == data["steps"][0]
    assert "~ 1 / 1  put  (the first difference)" in result.out
    beside = cli("diff", one, two, "--side-by-side").out
    assert [line[0] for line in beside.splitlines()[1:5]] == ["▶", "≠", "-", "+"]
    assert [s["relation"] for s in data["steps"]] == ["changed", "changed", "only_a", "only_b"]
    assert data["steps"][0]["changes"][0] == {"path": "args.text", "a": "x", "b": "yy"}
    assert (data["steps"][2]["a"], data["steps"][2]["b"]) == (3, None)


def test_a_step_in_between_does_not_shift_the_rest(cli: Cli, store: Path, tools: Any) -> None:
    calls = [(tools.put, {"path": str(n), "text": "x"}) for n in range(10)]
    one = record_calls(store, calls)
    two = record_calls(store, [*calls[:5], (tools.look, {"path": "q"}), *calls[5:]])
    result = cli("diff", one, two, "--all", "--json")
    assert result.code == 1
    assert [s["relation"] for s in result.data["steps"]] == ["same"] * 5 + ["only_b"] + ["same"] * 5
    assert "=  1 / 1   put" in cli("diff", one, two, "--all").out


def test_identical_calls_are_counted(cli: Cli, store: Path, tools: Any) -> None:
    poll = (tools.look, {"path": "q"})
    put = (tools.put, {"path": "a", "text": "x"})
    runs = record_calls(store, [poll, poll, put, poll]), record_calls(store, [poll] * 3)
    steps = cli("diff", *runs, "--json", "--all").data["steps"]
    assert [s["relation"] for s in steps] == ["same", "same", "only_a", "same"]


def test_swapped_steps(cli: Cli, store: Path, tools: Any) -> None:
    calls = [(tools.put, {"path": "a", "text": "x"}), (tools.look, {"path": "q"})]
    runs = record_calls(store, calls), record_calls(store, calls[::-1])
    steps = cli("diff", *runs, "--json", "--all").data["steps"]
    assert sorted(s["relation"] for s in steps) == ["only_a", "only_b", "same"]


def test_a_changed_secret_shows_without_its_value(cli: Cli, store: Path, tools: Any) -> None:
    runs = [record_calls(store, [(tools.login, {"user": "ann", "password": p})]) for p in "ab"]
    result = cli("diff", *runs)
    assert result.code == 1
    assert "args.password: <secret> → <secret>" in result.out


def test_many_changes_of_one_step_are_cut(cli: Cli, store: Path, tools: Any) -> None:
    runs = [
        record_calls(store, [(many, {"values": [n + i for i in range(50)]})]) for n in (0, 1000)
    ]
    assert "and 30 more" in cli("diff", *runs).out
    assert len(cli("diff", *runs, "--json").data["steps"][0]["changes"]) == 50


def many(values: list[int]) -> None:
    return None


def test_a_blocked_step_differs_from_one_that_ran(cli: Cli, store: Path, dead: str) -> None:
    with Session("payment", store=store, replay="off") as session:
        session.call(put, path="a.txt")
    result = cli("diff", dead, session.run_id)
    assert result.code == 1
    assert "- 2 / —  pay" in result.out


def put(path: str) -> str:
    return "put"


def test_hostile_values_stay_text(cli: Cli, record: Record, evil: str) -> None:
    result = cli("diff", record(text=evil), record())
    assert result.code == 1
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(result.out)
    assert "[red]x[/red]" in result.out


def test_a_corrupt_run_is_refused(cli: Cli, record: Record, edit: Any) -> None:
    runs = record(), record()
    edit(runs[1], lambda lines: lines[1:])
    assert cli("diff", *runs).code == 3
