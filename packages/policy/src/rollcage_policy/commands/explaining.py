"""`rollcage policy explain`: how each rule decides on one call, and the text for the model."""

from __future__ import annotations

from typing import Annotated, Any, cast, get_args

import orjson
import typer
from rich.text import Text
from rollcage import Contract
from rollcage.gate import Verdict
from rollcage_cli.errors import StepNotFound, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import arguments_text, console, print_json, visible
from rollcage_cli.tools import contracts_of, load_tools
from rollcage_views import mapping_of

from rollcage_policy import Explained, Figures, Judged, Policy, Rerun, Trial, view_of
from rollcage_policy.commands.meant import run_meant
from rollcage_policy.commands.options import (
    AgentOption,
    PolicyArgument,
    ResolveOption,
    ToolsOption,
    UserInputOption,
    decision_text,
    place_of,
    plain_table,
    shown_arguments,
    verdict_data,
)
from rollcage_policy.recorded import Effect

__all__ = ["explain"]


def explain(
    policy: PolicyArgument,
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN", help="As in every command.", show_default=False),
    ] = None,
    step: Annotated[int | None, typer.Argument(min=1, metavar="STEP]", show_default=False)] = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Or: a call of it.")] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Its arguments, an object.")
    ] = None,
    effect: Annotated[
        str | None, typer.Option(metavar="EFFECT", help="What it declares (write).")
    ] = None,
    risk: Annotated[str | None, typer.Option(metavar="WORD", help="What it declares.")] = None,
    model: Annotated[bool, typer.Option("--model", help="It is a model, not a tool.")] = OFF,
    label: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="What its arguments carry.")
    ] = None,
    agent: AgentOption = "",
    user_input: UserInputOption = None,
    resolve: ResolveOption = OFF,
    tools: ToolsOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Explain a decision: evaluate each rule on a call.

    The call is a recorded step, or --tool NAME --args JSON. The output shows which rules do not
    match,
    and why; whose condition holds, does not hold, or fails; which rule decides; and the text for
    the
    model. Unknown parts of the call are listed, not guessed.
    """
    contracts = contracts_of(load_tools(tools))
    loaded = Policy.load(policy)
    if tool is None:
        made_up = (args, effect, risk) != (None, None, None) or label or model or agent
        if run is None or step is None or made_up:
            raise UsageError("name a call: RUN STEP of a recorded one, or --tool NAME")
        rerun = Rerun(loaded, tools=contracts, user_input=user_input, resolver=resolve)
        judged = _recorded(rerun, store, run, step)
    elif run is not None:
        raise UsageError("RUN STEP or --tool NAME, not both")
    else:
        contract = _contract(tool, effect, risk, contracts, model=model)
        view = view_of(
            contract,
            _arguments(args),
            "model" if model else "tool",
            agent=agent,
            labels=frozenset(label or ()),
            run=Figures(),
        )
        tried = Trial(loaded, user_input=user_input, resolver=resolve).explain(view)
        judged = Judged(
            0, 0, view, Verdict("allow"), False, tried.verdict, tried.unknown, rules=tried.rules
        )
    if as_json:
        print_json(_data(loaded, judged))
    else:
        _print(loaded, judged)


def _recorded(rerun: Rerun, store: str, run: str, step: int) -> Judged:
    found = run_meant(store, run)
    for judged in rerun.over(found.read(), found.blob, explain=step):
        if judged.step == step:
            return judged
    raise StepNotFound(f"run {found.run} has no call at step {step}")


def _contract(
    name: str, effect: str | None, risk: str | None, known: list[Contract], *, model: bool
) -> Contract:
    """Return one of the current tools, unless the options declare the tool."""
    if effect is None and risk is None and not model:
        for each in known:
            if each.name == name:
                return each
    chosen = effect or ("read" if model else "write")
    if chosen not in get_args(Effect):
        raise UsageError(f"{visible(chosen)!r} is not an effect: {', '.join(get_args(Effect))}")
    return Contract(
        name=name,
        parameters={"type": "object"},
        effect=cast("Effect", chosen),
        risk=risk or "",
    )


def _arguments(text: str | None) -> dict[str, Any]:
    try:
        data = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise UsageError(f"--args is not JSON: {error}") from None
    mapping = mapping_of(data)
    if mapping is None:
        raise UsageError('--args is not an object: {"name": value, …}')
    return mapping


# --- showing -------------------------------------------------------------------------------------


def _print(policy: Policy, judged: Judged) -> None:
    out, view, now = console(), judged.view, judged.now
    by = f" by {visible(view.agent)}" if view.agent else ""
    called = f"{visible(view.name)}({arguments_text(shown_arguments(judged))})"
    out.print(Text(f"{called}, {view.effect}{by}"), soft_wrap=True)
    if view.labels:
        out.print(Text(f"carries {visible(', '.join(sorted(view.labels)))}"), soft_wrap=True)
    if judged.apart:
        out.print(Text(f"{judged.apart}: {visible(judged.was.message)}"), soft_wrap=True)
        return
    table = plain_table("", "rule", "says", "on this call", "place")
    for each in judged.rules:
        evaluation = each.evaluation
        style = "dim" if evaluation.passed_over else ""
        table.add_row(
            Text(">" if evaluation.decides else ""),
            Text(visible(each.rule.id), style=style),
            decision_text(each.rule.decision),
            Text(visible(_on_this_call(each)), style=style),
            Text(place_of(each.rule), style=style),
        )
    if judged.rules:
        out.print(table)
    if now is None:
        missing = visible(", ".join(judged.unknown))
        out.print(
            Text(f"? undecided, because some values are not known: {missing}", style="yellow")
        )
        return
    line = decision_text(now.decision)
    line.append(f" by {_decider(policy, now)}" + (f", code {visible(now.code)}" * bool(now.code)))
    out.print(line, soft_wrap=True)
    if now.decision != "allow":
        who = "the model reads" if now.decision == "deny" else "who approves reads"
        out.print(Text(f"{who}: {visible(now.message)}"), soft_wrap=True)


def _decider(policy: Policy, verdict: Verdict) -> str:
    if verdict.rule == "default":
        return "default: no rule matches"
    is_rule = any(rule.id == verdict.rule for rule in policy.rules)
    return f"{'rule' if is_rule else 'limit'} {visible(verdict.rule)}"


def _on_this_call(each: Explained) -> str:
    evaluation = each.evaluation
    if evaluation.passed_over:
        return f"does not match ({evaluation.passed_over})"
    if each.unknown:
        return f"not known: {', '.join(each.unknown)}"
    if evaluation.error:
        return f"fails, so the call is denied: {evaluation.error}"
    if not evaluation.holds:
        return f"not met: {' '.join((each.rule.when or '').split())}"
    return "always" if each.rule.when is None else f"met: {' '.join(each.rule.when.split())}"


def _data(policy: Policy, judged: Judged) -> dict[str, Any]:
    view = judged.view
    return {
        "policy": {"name": policy.name, "digest": policy.digest},
        "step": judged.step or None,
        "call": {
            "kind": view.kind,
            "name": view.name,
            "version": view.contract.version,
            "effect": view.effect,
            "agent": view.agent,
            "args": shown_arguments(judged),
            "labels": sorted(view.labels),
        },
        "apart": judged.apart or None,
        "unknown": judged.unknown,
        "verdict": verdict_data(judged.now),
        "rules": [
            {
                "id": each.rule.id,
                "decision": each.rule.decision,
                "passed_over": each.evaluation.passed_over or None,
                "holds": each.evaluation.holds,
                "error": each.evaluation.error or None,
                "unknown": each.unknown,
                "decides": each.evaluation.decides,
                "where": each.rule.where,
                "line": each.rule.line,
            }
            for each in judged.rules
        ],
    }
