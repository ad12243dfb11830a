"""Measure a policy: a write under it, its decision beside its two conditions, and Cedar.

A write is made under a policy without a rule, and under a policy of ten rules that apply, each with
a condition on its arguments.

Two rules are about the tool, each with a condition on the arguments or on the tool's declaration;
8, 98 or 998 other rules are about other tools. Bare, the same two compiled conditions are evaluated
with nothing around them, in four ways:

* by hand: in a context that is kept and holds only the values the conditions ask for.
* by name: the same, with `args.to` written as a variable of its own, as a policy evaluates it if
  it can. The least.
* kept: in a context that is kept and gets all arguments of the call.
* plain: each with a dict of its own, as the library's documentation shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rollcage import Contract, Session, StepView
from rollcage_policy import Policy

from benchmarks.ours import write_mail
from benchmarks.timing import WARM_UP, cpu_per_call
from benchmarks.workload import Mail, mail, send_mail

ASK: Final = 'args.priority > 1000000 && tool.effect == "write"'
ALLOW: Final = 'args.to.endsWith("@example.org")'

_POLICY: Final = f"""
version = 1
[[rules]]
id = "urgent"
tools = ["send_*"]
when = '{ASK}'
decision = "ask"
reason = "it is urgent"
[[rules]]
id = "ours"
tools = ["send_mail"]
when = '{ALLOW}'
decision = "allow"
"""
_OTHER: Final = """
[[rules]]
id = "other-{0}"
tools = ["other_{0}_*"]
when = 'args.size > {0}'
decision = "deny"
reason = "it is too large"
"""

_CEDAR: Final = """
permit (principal, action == Action::"send_mail", resource)
when { context.args.to like "*@example.org" };
forbid (principal, action == Action::"send_mail", resource)
when { context.args.priority > 1000000 && context.tool.effect == "write" };
"""
_CEDAR_OTHER: Final = """
forbid (principal, action == Action::"other_{0}", resource)
when {{ context.args.size > {0} }};
"""


APPLYING: Final = """
[[rules]]
id = "applying-{0}"
tools = ["send_*"]
when = 'args.priority > 1000000{0}'
decision = "deny"
reason = "it is urgent"
"""


def write(calls: int, folder: Path, *, rules: int = 0) -> dict[str, float]:
    """Measure a recorded write under a policy of `rules` rules, which apply to it."""
    applying = "".join(APPLYING.format(number) for number in range(rules))
    policy = Policy.parse('version = 1\ndefault = "allow"\n' + applying)
    with Session("bench", store=folder, replay="off", gate=[policy]):
        return {"cpu_us": cpu_per_call(lambda arguments: write_mail(**arguments), calls)}


def decide(calls: int, folder: Path, *, rules: int) -> dict[str, float]:
    """Measure `Policy.decide`, of the view that a session shows to every rule."""
    others = "".join(_OTHER.format(number) for number in range(rules - 2))
    policy = Policy.parse(_POLICY + others)
    contract = Contract.of(send_mail, effect="write")

    shown = [{**mail(number)} for number in range(WARM_UP + calls)]
    views = [StepView("tool", contract, each, data=each) for each in shown]

    def ask(arguments: Mail) -> None:
        assert policy.decide(views[arguments["priority"]]).rule == "ours"

    return {"cpu_us": cpu_per_call(ask, calls)}


def by_hand(calls: int, folder: Path) -> dict[str, float]:
    """Measure the two conditions in a context of only the values they ask for."""
    return _bare(
        calls, lambda arguments: {"to": arguments["to"], "priority": arguments["priority"]}
    )


def by_name(calls: int, folder: Path) -> dict[str, float]:
    """Measure the two conditions, rewritten so that each argument is a variable."""
    import cel

    first, second = (cel.compile(each.replace("args.", "args_")) for each in (ASK, ALLOW))
    context = cel.Context({"tool": {"effect": "write"}})

    def evaluate(arguments: Mail) -> None:
        context.add_variable("args_priority", arguments["priority"])
        context.add_variable("args_to", arguments["to"])
        assert first.execute(context) is False
        assert second.execute(context) is True

    return {"cpu_us": cpu_per_call(evaluate, calls)}


def kept(calls: int, folder: Path) -> dict[str, float]:
    """Measure the two conditions in a context of all arguments."""
    return _bare(calls, lambda arguments: arguments)


def plain(calls: int, folder: Path) -> dict[str, float]:
    """Measure the two conditions, each with its dict."""
    import cel

    first, second = cel.compile(ASK), cel.compile(ALLOW)

    def evaluate(arguments: Mail) -> None:
        seen = {"args": arguments, "tool": {"effect": "write"}}
        assert first.execute(seen) is False
        assert second.execute(seen) is True

    return {"cpu_us": cpu_per_call(evaluate, calls)}


def _bare(calls: int, seen: Callable[[Mail], object]) -> dict[str, float]:
    import cel

    first, second = cel.compile(ASK), cel.compile(ALLOW)
    context = cel.Context({"tool": {"effect": "write"}})

    def evaluate(arguments: Mail) -> None:
        context.add_variable("args", seen(arguments))
        assert first.execute(context) is False
        assert second.execute(context) is True

    return {"cpu_us": cpu_per_call(evaluate, calls)}


def cedar(calls: int, folder: Path, *, rules: int) -> dict[str, float]:
    """Measure the same decision of the same rules in Cedar, with everything parsed beforehand."""
    import cedarpy

    others = "".join(_CEDAR_OTHER.format(number) for number in range(rules - 2))
    policies = cedarpy.PolicySet.from_str(_CEDAR + others)
    entities = cedarpy.Entities.from_json_str(json.dumps([]))
    request = {
        "principal": {"type": "Agent", "id": "main"},
        "action": {"type": "Action", "id": "send_mail"},
        "resource": {"type": "Tool", "id": "send_mail"},
    }

    def ask(arguments: Mail) -> None:
        context = {"args": arguments, "tool": {"effect": "write"}}
        assert cedarpy.is_authorized({**request, "context": context}, policies, entities).allowed

    return {"cpu_us": cpu_per_call(ask, calls)}
