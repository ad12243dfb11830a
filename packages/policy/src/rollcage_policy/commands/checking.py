"""`rollcage policy check`: whether a policy can be used, and which parts have no effect."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.text import Text
from rollcage.errors import PolicyInvalid
from rollcage_cli.errors import DIFFERENT
from rollcage_cli.options import OFF, JsonOption
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.tools import contracts_of, load_tools
from rollcage_views import items_of

from rollcage_policy import Doubt, Policy, PolicyRule, doubts
from rollcage_policy.commands.options import (
    PolicyArgument,
    ToolsOption,
    decision_text,
    place_of,
    plain_table,
)

__all__ = ["check"]


def check(
    policy: PolicyArgument,
    tools: ToolsOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Check a policy, and list its problems with file and line.

    Warns of rules that never decide and, if the tools are known, of names that no tool has, of
    arguments that no tool takes, and of tools that no rule matches. Exits with 1 if the policy is
    invalid.
    """
    contracts = contracts_of(load_tools(tools))
    try:
        found = Policy.load(policy)
    except PolicyInvalid as error:
        _refuse(error, as_json=as_json)
        raise typer.Exit(DIFFERENT) from None
    odd = doubts(found, contracts or None)
    if as_json:
        print_json(_data(found, odd))
    else:
        _print(found, odd)
    if odd and strict:
        raise typer.Exit(DIFFERENT)


def _refuse(error: PolicyInvalid, *, as_json: bool) -> None:
    if as_json:
        problems = [problem._asdict() for problem in error.problems]
        print_json({"valid": False, "problems": problems})
        return
    out = console()
    for problem in error.problems:
        place = f"{problem.where}:{problem.line}" if problem.line else problem.where
        text = ": ".join(part for part in (problem.path, problem.reason) if part)
        out.print(Text(visible(f"{place}: {text}")), soft_wrap=True)
    count = len(error.problems)
    out.print(Text(f"invalid: {count} problem{'s' * (count > 1)}", style="bold red"))


def _print(policy: Policy, odd: list[Doubt]) -> None:
    out = console()
    table = plain_table("rule", "decision", "tools", "about", "when", "place")
    for rule in policy.rules:
        table.add_row(
            Text(visible(rule.id)),
            decision_text(rule.decision),
            Text(visible(", ".join(rule.tools))),
            Text(visible(_about(rule))),
            Text(visible(" ".join((rule.when or "").split()))),
            Text(place_of(rule)),
        )
    if policy.rules:
        out.print(table)
    for limit in policy.limits.rules:
        out.print(Text(f"limit {visible(limit.id)}: {visible(_limit(limit))}"), soft_wrap=True)
    if policy.limits.loops is not None:
        out.print(Text(f"loops: {visible(_limit(policy.limits.loops))}"), soft_wrap=True)
    for doubt in odd:
        place = f"{doubt.where}:{doubt.line}: " if doubt.line else ""
        text = visible(f"{place}{doubt.id}: {doubt.reason}")
        out.print(Text("warning: ", style="yellow").append(text, style="default"), soft_wrap=True)
    named = f" {visible(policy.name)}" if policy.name else ""
    mode = ", shadow: decisions are recorded, not enforced" if policy.mode == "shadow" else ""
    text = f"valid:{named} {counted(len(policy.rules), 'rule')}, else {policy.default}{mode}"
    out.print(Text(text, style="green"), soft_wrap=True)
    out.print(f"digest {policy.digest}", soft_wrap=True)


def _about(rule: PolicyRule) -> str:
    """Return the calls that a rule matches besides its tools, if not all."""
    parts = [] if rule.agents == ("*",) else [f"agents {', '.join(rule.agents)}"]
    if len(rule.kinds) == 1:
        parts.append(f"{rule.kinds[0]} calls")
    if rule.effects is not None:
        parts.append("/".join(rule.effects))
    return "; ".join(parts)


def _limit(limit: Any) -> str:
    given = limit.model_dump(mode="json", exclude_defaults=True, exclude={"id"})
    return ", ".join(f"{name} {_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    several = items_of(value)
    return str(value) if several is None else "/".join(map(str, several))


def _data(policy: Policy, odd: list[Doubt]) -> dict[str, Any]:
    return {
        "valid": True,
        "name": policy.name,
        "digest": policy.digest,
        "default": policy.default,
        "mode": policy.mode,
        "flow": policy.flow,
        "rules": [
            {
                "id": rule.id,
                "decision": rule.decision,
                "tools": rule.tools,
                "agents": rule.agents,
                "kinds": rule.kinds,
                "effects": rule.effects,
                "when": rule.when,
                "code": rule.verdict.code,
                "where": rule.where,
                "line": rule.line,
            }
            for rule in policy.rules
        ],
        "limits": policy.limits.model_dump(mode="json", exclude_none=True),
        "warnings": [dataclasses.asdict(doubt) for doubt in odd],
    }
