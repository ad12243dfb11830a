"""`rollcage policy test`: compare a policy's verdicts with the expected ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.options import OFF, JsonOption
from rollcage_cli.output import console, print_json, visible
from rollcage_cli.tools import contracts_of, load_tools

from rollcage_policy import CaseResult, Cases, Policy, deciders
from rollcage_policy.commands.options import ToolsOption, decision_text, plain_table, verdict_data

__all__ = ["run_tests"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Tested:
    """One policy, and the files of tests for it."""

    where: str
    policy: Policy
    files: list[tuple[Cases, list[CaseResult]]]

    @property
    def uncovered(self) -> list[str]:
        """Return the ids that decided no case."""
        used = {r.verdict.rule for _, found in self.files for r in found if r.verdict}
        return [each for each in deciders(self.policy) if each not in used]


def run_tests(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TESTS...", help="Test files.", show_default=False),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The policy; by default the one that the tests name."),
    ] = None,
    tools: ToolsOption = None,
    covered: Annotated[
        bool, typer.Option("--covered", help="Also exit with 1 if a rule decided no case.")
    ] = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Test a policy: each case is a call and its expected decision.

    No tool runs. Exits with 1 if a verdict differs from the expected one.
    """
    contracts = contracts_of(load_tools(tools))
    tested: dict[Path, _Tested] = {}
    for path in files:
        cases = Cases.load(path, contracts)
        meant = policy or cases.policy
        if meant is None:
            raise UsageError(f"{visible(str(path))} names no policy: pass one with --policy")
        each = tested.get(meant.resolve())
        if each is None:
            each = tested[meant.resolve()] = _Tested(str(meant), Policy.load(meant), [])
        each.files.append((cases, cases.run(each.policy)))
    results = [r for each in tested.values() for _, found in each.files for r in found]
    failed = sum(not result.passed for result in results)
    if as_json:
        print_json(_data(list(tested.values()), len(results), failed))
    else:
        for each in tested.values():
            _print(each)
        style = "bold red" if failed else "green"
        console().print(Text(f"{len(results) - failed} passed, {failed} failed", style=style))
    if failed or (covered and any(each.uncovered for each in tested.values())):
        raise typer.Exit(DIFFERENT)


def _print(tested: _Tested) -> None:
    out = console()
    for cases, results in tested.files:
        out.print(Text(visible(cases.where), style="bold"), soft_wrap=True)
        table = plain_table("", "case", "decision", "rule", "line")
        for result in results:
            verdict = result.verdict
            table.add_row(
                Text("ok", style="green") if result.passed else Text("FAILED", style="bold red"),
                Text(visible(result.case.name)),
                decision_text(None if verdict is None else verdict.decision),
                Text("" if verdict is None else visible(verdict.rule)),
                Text(str(result.case.line)),
            )
        out.print(table)
        for result in results:
            for difference in result.differences:
                text = f"{cases.where}:{result.case.line}: {result.case.name}: {difference}"
                out.print(Text(visible(text)), soft_wrap=True)
            if not result.passed and result.verdict is not None and result.verdict.message:
                out.print(Text(f"    it says: {visible(result.verdict.message)}"), soft_wrap=True)
    if tested.uncovered:
        text = f"{tested.where}: decided no case: {', '.join(tested.uncovered)}"
        out.print(Text(visible(text), style="yellow"), soft_wrap=True)


def _data(tested: list[_Tested], total: int, failed: int) -> dict[str, Any]:
    return {
        "passed": total - failed,
        "failed": failed,
        "policies": [
            {
                "policy": each.where,
                "digest": each.policy.digest,
                "uncovered": each.uncovered,
                "files": [
                    {"file": cases.where, "cases": [*map(_case_data, results)]}
                    for cases, results in each.files
                ],
            }
            for each in tested
        ],
    }


def _case_data(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "line": result.case.line,
        "passed": result.passed,
        "got": verdict_data(result.verdict),
        "error": result.error or None,
        "differences": result.differences,
    }
