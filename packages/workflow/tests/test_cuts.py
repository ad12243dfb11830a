"""An execution whose process dies behind any line of its trace goes on to the same end."""

import random
from pathlib import Path
from typing import Any

import pytest
from rollcage import aundo_run, open_store
from rollcage.trace.chain import parse
from rollcage.trace.run import fold_lines
from rollcage_workflow import execution
from rollcage_workflow.orders import Commands
from worlds import World

pytestmark = pytest.mark.nightly

BRANCHING: dict[str, Any] = {
    "name": "branching",
    "inputs": {"who": {"type": "string", "default": "ann"}},
    "steps": {
        "orders": {"call": "look", "args": {"what": "=inputs.who"}},
        "first": {"call": "put", "args": {"what": "first"}},
        "each": {
            "each": {
                "over": "=orders",
                "steps": {
                    "a": {"call": "put", "args": {"what": "='a-' + item"}},
                    "b": {"call": "put", "args": {"what": "='b-' + item"}, "after": ["a"]},
                },
            },
            "after": ["first"],
        },
        "helper": {"agent": "agent", "args": {"task": "ask"}, "after": ["first"]},
        "maybe": {"call": "look", "args": {"what": "maybe", "fails": True}, "on_failure": "keep"},
        "skipped": {"call": "put", "args": {"what": "never"}, "when": "=maybe.ok"},
        "final": {
            "call": "put",
            "args": {"what": "=helper + string(size(each))"},
            "when": "=!maybe.ok",
        },
    },
    "output": {"each": "=size(each)", "skipped": "=skipped"},
}

LOOPING: dict[str, Any] = {
    "name": "looping",
    "steps": {
        "draft": {"call": "put", "args": {"what": "='draft ' + string(last == null ? 0 : last)"}},
        "review": {
            "value": "=last == null ? 1 : last + 1",
            "after": ["draft"],
            "next": {"to": "draft", "when": "=review < 3", "most": 5},
        },
        "rounds": {
            "repeat": {
                "steps": {"one": {"call": "put", "args": {"what": "='round ' + string(round)"}}},
                "result": "=round",
                "until": "=last >= 3",
                "most": 4,
            },
        },
        "publish": {"call": "put", "args": {"what": "publish"}, "after": ["review", "rounds"]},
    },
}

TEAM: dict[str, Any] = {
    "name": "team",
    "steps": {
        "all": {
            "team": {
                "members": {
                    "x": {"call": "put", "args": {"what": "x"}},
                    "y": {"agent": "agent", "args": {"task": "y"}},
                }
            }
        },
        "final": {"call": "put", "args": {"what": "last"}, "after": ["all"]},
    },
}

FAILING: dict[str, Any] = {
    "name": "failing",
    "on_failure": "rollback",
    "steps": {
        "a": {"call": "put", "args": {"what": "a"}},
        "b": {"call": "put", "args": {"what": "b"}},
        "c": {"agent": "agent", "args": {"task": "c"}, "after": ["a"]},
        "d": {"call": "put", "args": {"what": "d", "fails": True}, "after": ["b", "c"]},
        "e": {"call": "put", "args": {"what": "e"}, "after": ["d"]},
    },
}


def put(what: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, **more}


def chain(**steps: Any) -> dict[str, Any]:
    return {"repeat": {"steps": steps, "until": "=true", "most": 1}}


QUEUED: dict[str, Any] = {
    "name": "queued signals",
    "steps": {
        "rounds": {
            "repeat": {
                "steps": {
                    "go": {"wait": {"signal": "next"}},
                    "p": put("='p' + string(go)", after=["go"]),
                },
                "until": "=round >= 3",
                "most": 3,
            }
        },
        "both": {
            "repeat": {
                "steps": {"x": put("='x' + string(round)"), "y": put("='y' + string(round)")},
                "until": "=round >= 2",
                "most": 3,
            },
            "after": ["rounds"],
        },
        "end": {"value": "=rounds", "after": ["both"]},
    },
}

STARTED: dict[str, Any] = {
    "name": "started behind a step",
    "steps": {
        "a": {"call": "look", "args": {"what": "a"}},
        "b": put("never", after=["a"]),
        "beside": put("beside"),
        "c": put("='c' + b + string(size(a))", after=["b"]),
        "d": put("d", after=["c", "beside"]),
    },
}
UNDONE: dict[str, Any] = {
    "name": "undone",
    "steps": {
        "x": {"call": "put", "args": {"what": "='x' + inputs.part"}},
        "y": {"call": "put", "args": {"what": "='y' + inputs.part"}, "after": ["x"]},
        "bad": {"call": "look", "args": {"fails": True}, "after": ["y"]},
    },
    "inputs": {"part": {"type": "string", "default": ""}},
    "on_failure": "rollback",
}
SCOPED: dict[str, Any] = {
    "name": "scoped",
    "steps": {
        "a": {"call": "put", "args": {"what": "a"}},
        "saga": {"workflow": "undone", "on_failure": "keep", "after": ["a"]},
        "passes": {
            "each": {
                "over": "=['1', '2']",
                "steps": {
                    "s": {
                        "workflow": "undone",
                        "inputs": {"part": "=item"},
                        "on_failure": "keep",
                    },
                    "k": {"call": "put", "args": {"what": "='k' + item"}, "after": ["s"]},
                },
            },
        },
        "look": {
            "call": "look",
            "args": {"what": "l"},
            "next": {"to": "end", "when": "=last[0] == 'l0'"},
            "after": ["saga"],
        },
        "skipped": {"call": "put", "args": {"what": "never"}, "after": ["look"]},
        "end": {"call": "put", "args": {"what": "end"}, "after": ["skipped", "passes"]},
    },
}
HOW: dict[str, dict[str, Any]] = {
    "started behind a step": {"start": "c", "given": {"a": ["x"], "b": "given"}},
    "scoped": {"workflows": {"undone": UNDONE}},
}

RACE: dict[str, Any] = {
    "name": "race",
    "steps": {
        "race": {
            "team": {
                "mode": "race",
                "members": {
                    "a": chain(p=put("a1"), q=put("a2", after=["p"])),
                    "b": chain(p=put("b1"), q=put("b2", after=["p"]), r=put("b3", after=["q"])),
                },
            }
        },
        "end": put("='end ' + race.winner"),
    },
}
WAITING: dict[str, Any] = {
    "name": "waiting race",
    "steps": {
        "race": {
            "team": {
                "mode": "race",
                "members": {
                    name: chain(
                        p=put(f"{name}1"),
                        w={"wait": {"signal": f"go-{name}"}, "after": ["p"]},
                        q=put(f"{name}2", after=["w"]),
                    )
                    for name in "ab"
                },
            }
        },
        "end": put("='end ' + race.winner"),
    },
}


NESTED: dict[str, Any] = {
    "name": "nested race",
    "steps": {
        "race": {
            "team": {
                "mode": "race",
                "members": {
                    "a": chain(
                        p=put("a1"),
                        inner={
                            "team": {
                                "mode": "race",
                                "members": {
                                    name: chain(s=put(f"a{name}1"), t=put(f"a{name}2", after=["s"]))
                                    for name in "xy"
                                },
                            },
                            "after": ["p"],
                        },
                        q=put("a2", after=["inner"]),
                    ),
                    "b": chain(p=put("b1"), q=put("b2", after=["p"]), r=put("b3", after=["q"])),
                },
            }
        },
        "end": put("='end ' + race.winner"),
    },
}


async def through(world: World, plan: dict[str, Any]) -> str:
    """Attempts, until no more is done by itself; how it ended."""
    for attempt in range(8):
        try:
            found = await world.attempt(plan, **HOW.get(plan["name"], {}))
        except ValueError:
            return "failed"
        except Exception as error:
            if getattr(error, "code", "") == "execution_failed":
                return "failed"
            raise
        if found.is_over:
            return str(found.status)
        if found.status == "waiting":
            world.signal("go-a", True)
            world.signal("next", attempt)
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    "plan",
    [BRANCHING, LOOPING, TEAM, FAILING, QUEUED, STARTED, SCOPED],
    ids=lambda plan: plan["name"],
)
async def test_it_goes_on_to_the_same_end(plan: dict[str, Any], tmp_path: Path) -> None:
    chance = random.Random(plan["name"])  # noqa: S311 - reproducible
    whole = World(tmp_path / "whole")
    ended = await through(whole, plan)
    assert whole.standing or plan is FAILING
    for number, (run, line) in enumerate(whole.moments()):
        cut = whole.back(run, line, tmp_path / f"cut-{number}", chance)
        assert await through(cut, plan) == ended, (run, line)
        assert cut.standing == whole.standing, (run, line)
        assert cut.most <= 1
        again, behind = chance.choice([*cut.moments()])
        twice = cut.back(again, behind, tmp_path / f"again-{number}", chance)
        assert await through(twice, plan) == ended
        assert twice.standing == whole.standing
        assert twice.most <= 1


@pytest.mark.parametrize(
    "plan", [BRANCHING, LOOPING, TEAM, FAILING, QUEUED], ids=lambda plan: plan["name"]
)
async def test_it_is_paused_wherever_it_was_cut_and_cut_again_when_it_goes_on(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    """A pause of what a killed worker left: nothing is done until it is resumed, then all is."""
    chance = random.Random(plan["name"])  # noqa: S311 - reproducible
    whole = World(tmp_path / "whole")
    ended = await through(whole, plan)
    moments = [*whole.moments()]
    for number, (run, line) in enumerate(chance.sample(moments, min(len(moments), 15))):
        cut = whole.back(run, line, tmp_path / f"cut-{number}", chance)
        for time in range(2):
            commands, before = Commands(open_store(cut.store)), cut.standing
            now = execution(open_store(cut.store), "job")
            if now.is_over or not now.plan:  # its first line alone: no worker's command was there
                break
            reads, runs = len(cut.reads), cut.runs()
            commands.pause("job", by="ann")
            assert (await cut.attempt(plan)).status == "paused", (run, line)
            assert (len(cut.reads), cut.runs(), cut.standing) == (reads, runs, before)
            commands.resume("job", by="ann")
            again, then = chance.choice([*cut.moments()])
            cut = cut.back(again, then, tmp_path / f"again-{number}-{time}", chance)
        assert await through(cut, plan) == ended, (run, line)
        assert cut.standing == whole.standing, (run, line)
        assert cut.most <= 1


@pytest.mark.parametrize("plan", [LOOPING, QUEUED], ids=lambda plan: plan["name"])
async def test_an_undo_to_any_step_of_a_loop_and_on_from_there(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    chance = random.Random(plan["name"])  # noqa: S311 - reproducible
    whole = World(tmp_path / "whole")
    ended = await through(whole, plan)
    for number, (run, line) in enumerate(chance.sample([*whole.moments()], 20)):
        cut = whole.back(run, line, tmp_path / f"cut-{number}", chance)
        lines = open_store(cut.store).read(run)
        steps = fold_lines(parse(lines, run), run, {}).steps
        if not steps:
            continue
        to = chance.randint(1, max(steps))
        report = await aundo_run(cut.store, run, to=to, tools=cut.tools)
        assert report.complete, (run, line, to)
        assert await through(cut, plan) == ended, (run, line, to)
        assert cut.standing == whole.standing, (run, line, to)
        assert cut.most <= 1


@pytest.mark.parametrize("plan", [RACE, WAITING], ids=lambda plan: plan["name"])
async def test_one_member_of_a_race_wins_wherever_it_was_cut(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    """Which one may differ: but what another one did before the cut is taken back."""
    chance = random.Random(plan["name"])  # noqa: S311 - reproducible
    whole = World(tmp_path / "whole")
    assert await through(whole, plan) == "completed"
    longer = {"b3"} if plan is RACE else set()
    fine = [{"a1", "a2", "end a"}, {"b1", "b2", "end b", *longer}]
    for number, (run, line) in enumerate(whole.moments()):
        cut = whole.back(run, line, tmp_path / f"cut-{number}", chance)
        assert await through(cut, plan) == "completed", (run, line)
        assert set(cut.standing) in fine, (run, line, cut.standing)
        assert cut.most <= 1


async def test_a_race_in_a_member_of_a_race_ends_whole_wherever_it_was_cut_twice(
    tmp_path: Path,
) -> None:
    """A member that had lost, and was undone, gets no farther in the next attempt than it did."""
    chance = random.Random(4)  # noqa: S311 - reproducible
    whole = World(tmp_path / "whole")
    assert await through(whole, NESTED) == "completed"
    fine = [{"b1", "b2", "b3", "end b"}]
    fine += [{"a1", f"a{name}1", f"a{name}2", "a2", "end a"} for name in "xy"]
    assert set(whole.standing) in fine
    for number, (run, line) in enumerate(whole.moments()):
        cut = whole.back(run, line, tmp_path / f"cut-{number}", chance)
        assert await through(cut, NESTED) == "completed", (run, line)
        assert set(cut.standing) in fine, (run, line, cut.standing)
        for _ in range(2):
            again, then = chance.choice([*cut.moments()])
            twice = cut.back(again, then, tmp_path / f"again-{number}", chance)
            assert await through(twice, NESTED) == "completed", (run, line, again, then)
            assert set(twice.standing) in fine, (run, line, again, then, twice.standing)
            assert twice.most <= 1
