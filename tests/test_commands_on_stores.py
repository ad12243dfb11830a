"""Every command of every package works on a store that is a database, not a folder.

A new command has to be added to the table here, or a test fails.
"""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import cli, plain_environment  # noqa: F401 - pytest finds them here
from postgres import new_store
from rollcage import QueueApprover, Session, StepView, Verdict, open_store
from rollcage_cli.app import rollcage
from typer.main import get_group

TOOLS = """
from rollcage import compensate, tool

@tool(effect="write", name="on_stores.drop")
def drop(number: int) -> None: ...

@tool(
    effect="write",
    name="on_stores.keep",
    undo=lambda args: [compensate(drop, number=args["number"])],
)
def keep(number: int) -> int:
    if number < 0:
        raise KeyboardInterrupt
    return number
"""
PLAN = """
name: kept
steps:
  kept:
    call: on_stores.keep
    args: {number: 1}
"""
POLICY = """
version = 1
[[rules]]
id = "all"
decision = "allow"
reason = "why not"
"""
EXPORT = """
{"id": "a", "run_type": "chain", "name": "shop", "start_time": "2026-03-01T10:00:00Z"}
{"id": "b", "run_type": "tool", "name": "price", "parent_run_id": "a", "trace_id": "a", \
"inputs": {"item": "apple"}, "outputs": {"output": "2"}, "start_time": "2026-03-01T10:00:00Z"}
"""
NO_STORE = {
    "demo", "quickstart", "workflow init", "workflow check", "policy init", "policy check",
    "policy test", "token create", "token list", "token revoke", "mcp install", "mcp uninstall",
}  # fmt: skip
# In this order, on one store: the command, its arguments, and its exit code, if not 0. A command
# that does not end, or needs more than a store, is only called with a wrong URL here.
TABLE = """
runs
jobs
show @job
watch @job
verify @job
diff @job @other                                  -> 1
audit
export @job
stop @lost --by ann
stop @lost --lift
pause @lost --by ann
unpause @lost
doctor                                            -> 1
resolve @lost 1 --did-not-happen
once
repair
copy --to sqlite:///copied.db
fork @job --at 1 --result 5 --save fork.json
approvals
approve {0} --by bob
reject {1} --by bob
respond {2} --value 1 --by bob
undo @job --yes --tools on_stores_tools
abandon @lost --by ann
policy explain policy.toml @other 1
policy replay policy.toml                         -> 1
backtest --policy policy.toml
tools propose on_stores_tools:keep --by ann
tools list
tools review on_stores.keep
tools diff
tools approve on_stores.keep --by bob --yes
tools activate on_stores.keep pack --by bob
tools facade agents pack --by bob
tools log
tools deactivate on_stores.keep pack --by bob
tools freeze on_stores.keep --why broken --by bob
tools unfreeze on_stores.keep --by bob
tools deprecate on_stores.keep --why old --by bob
tools propose on_stores_tools:drop --by ann
tools reject on_stores.drop --why no --by bob
workflow run plan.yaml one --tools on_stores_tools
workflow start plan.yaml two
workflow list
workflow show one
workflow show two
workflow signal two go
workflow pause two
workflow resume two
workflow cancel two
workflow picture plan.yaml --tools on_stores_tools --id one
workflow picture --id one
workflow reconcile
worker --once --plans plan.yaml --tools on_stores_tools
workflow schedule nightly plan.yaml "0 3 * * *"
workflow schedules
workflow unschedule nightly
mcp run -- true                                   -> elsewhere
mcp serve -- true                                 -> elsewhere
mcp tools --tools on_stores_tools                 -> elsewhere
mcp ops                                           -> elsewhere
mcp accept
serve                                             -> elsewhere
ui                                                -> elsewhere
import spans.jsonl
prune --older 2000-01-01
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    there = f"sqlite:///{tmp_path / 'runs.db'}"
    with new_store() if request.param == "postgres" else contextlib.nullcontext(there) as found:
        yield found


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "on_stores_tools.py").write_text(TOOLS)
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "spans.jsonl").write_text(EXPORT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "on_stores_tools", raising=False)
    return __import__("on_stores_tools")


def commands(group: Any, *above: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands by their whole names, with the names of their groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if hasattr(found, "list_commands"):
            yield from commands(found, *above, name)
        else:
            yield " ".join([*above, name]), found


def rows() -> Iterator[tuple[str, list[str], int | None]]:
    """Yield the table: each command, its arguments, and its exit code."""
    known = dict(commands(get_group(rollcage)))
    for line in TABLE.strip().splitlines():
        given, _, code = line.partition("->")
        words = shlex.split(given)
        length = 2 if " ".join(words[:2]) in known else 1
        if " ".join(words[:length]) not in known:
            continue  # its package is not installed
        ends = None if code.strip() == "elsewhere" else int(code or 0)
        yield " ".join(words[:length]), words[length:], ends


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so many?") if view.args["number"] > 9 else None


def record(url: str, tools: Any, name: str, *numbers: int) -> None:
    with (
        contextlib.suppress(KeyboardInterrupt),
        Session(name, store=url, gate=[asks], approver=QueueApprover(url)),
    ):
        for number in numbers:
            tools.keep(number)


def test_the_table_has_them_all() -> None:
    assert {name for name, _ in commands(get_group(rollcage))} - NO_STORE == {r[0] for r in rows()}


def test_each_takes_a_store(cli: Any, url: str, tools: Any, tmp_path: Path) -> None:  # noqa: F811
    record(url, tools, "job", 1, 2)
    record(url, tools, "other", 1, 3)
    record(url, tools, "lost", -1)
    for number in (10, 11, 12):
        with pytest.raises(Exception, match="waits for a decision"):
            record(url, tools, f"asks {number}", number)
    waiting = open_store(url).keys("requests")
    told = []
    for name, given, code in rows():
        if code is None:
            continue
        option = "--from" if name == "copy" else "--store"
        ended = cli(*name.split(), option, url, *(each.format(*waiting) for each in given))
        if ended.code != code:
            told.append(f"{name} ended with {ended.code}: {ended.out}{ended.err}")
    assert not told, "\n".join(told)
    made = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert made <= {"__pycache__", "runs.db-live", "copied.db-live"}  # beside a database: who runs


def test_each_refuses_a_url_that_nobody_knows(cli: Any, tmp_path: Path) -> None:  # noqa: F811
    before = set(tmp_path.iterdir())
    for name, given, _ in rows():
        if name == "mcp run":
            continue  # it opens the store for a client, and tells that one why it can't
        option = "--from" if name == "copy" else "--store"
        ended = cli(*name.split(), option, "nobody://knows", *given)
        assert (name, ended.code) == (name, 2), ended.out + ended.err
        assert "nobody://" in ended.err, name
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "__pycache__"}
