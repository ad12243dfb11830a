"""Policy tests, in a file of their own: calls with their expected verdicts. No tool runs."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

import pydantic
from rollcage import Contract
from rollcage.errors import (
    ArgumentsInvalid,
    ContractError,
    PolicyInvalid,
    PolicyProblem,
)
from rollcage.gate import StepView, Verdict
from rollcage.trace import decode, key_digest

from rollcage_policy.casefile import NAMES, CallData, CaseData, CasesFile, EarlierData
from rollcage_policy.functions import surroundings
from rollcage_policy.lines import Document, Path
from rollcage_policy.loading import read_file
from rollcage_policy.meter import Meter
from rollcage_policy.policy import Policy
from rollcage_policy.policyfile import problems_of
from rollcage_policy.recorded import Figures
from rollcage_policy.trial import fixed_resolver

__all__ = ["Case", "CaseResult", "Cases", "deciders", "view_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One test.

    Attributes:
        name: the purpose of the test.
        line: its line in the file.
    """

    name: str
    line: int
    data: CaseData = dataclasses.field(repr=False)
    contracts: tuple[Contract, ...] = dataclasses.field(
        repr=False
    )  # of the call, then of the calls before it


@dataclasses.dataclass(frozen=True, slots=True)
class CaseResult:
    """How a test ended.

    Attributes:
        case: the test.
        verdict: the verdict on the call; None if the call can't be made.
        error: why it can't.
        differences: the differences from the expectation, as `rule: 'a' is expected, not 'b'`.
    """

    case: Case
    verdict: Verdict | None
    error: str
    differences: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether it is as expected."""
        return not self.differences


class Cases:
    """The tests in one file.

    Attributes:
        where: the file.
        policy: the file of the tested policy; None if the tests name none.
        cases: the tests, in order.
    """

    def __init__(self, document: Document, file: CasesFile, tools: Iterable[Contract]) -> None:
        self.where = document.where
        self.policy: FilePath | None = None
        if file.policy is not None:
            self.policy = FilePath(document.where).parent / file.policy
        self.cases = tuple(_Contracts(document, file, tools).cases())

    @classmethod
    def load(cls, path: str | FilePath, tools: Iterable[Contract] = ()) -> Cases:
        """Load the tests from a file: `.toml`, `.yaml` or `.yml`.

        Args:
            path: the file.
            tools: the current tools, for calls of tools that the file does not declare itself.

        Raises:
            PolicyInvalid: the tests can't be used; the message names file and line of each problem.
        """
        document = read_file(FilePath(path))
        try:
            file = CasesFile.model_validate(document.data)
        except pydantic.ValidationError as error:
            raise PolicyInvalid(problems_of(document, error, names=NAMES)) from None
        return cls(document, file, tools)

    def run(self, policy: Policy) -> list[CaseResult]:
        """Run each test against a policy."""
        return [_run(each, policy) for each in self.cases]


def deciders(policy: Policy) -> tuple[str, ...]:
    """Return the ids of everything that decides in a policy: rules, limits, loop detection."""
    loops = (policy.limits.loops,) if policy.limits.loops else ()
    return tuple(each.id for each in (*policy.rules, *policy.limits.rules, *loops))


def view_of(contract: Contract, data: Mapping[str, Any], kind: str, **more: Any) -> StepView:
    """Return a call of a tool as a policy sees it.

    Args:
        contract: the tool's contract; its schema validates the arguments.
        data: the arguments: JSON, with values that JSON can't hold tagged as in the trace.
        kind: `tool` or `model`.
        more: further fields of `StepView`.

    Raises:
        ArgumentsInvalid: the tool does not accept the arguments.
    """
    try:
        given = {name: decode(value) for name, value in data.items()}
    except ValueError as error:
        raise ArgumentsInvalid(f"{contract.name}: {error}") from None
    bound = contract.bind(given, _sealed)
    key = key_digest(kind, contract.name, contract.version, bound.digest_input).hex()
    return StepView(
        kind=kind, contract=contract, args=bound.values, data=bound.canonical, key=key, **more
    )


def _sealed(_: str) -> str:
    return "0" * 64  # nothing is recorded, so no secret needs a real seal


class _Contracts:
    """Finds the tools of cases."""

    def __init__(self, document: Document, file: CasesFile, tools: Iterable[Contract]) -> None:
        self._document = document
        self._file = file
        self._tools = {each.name: each for each in tools}
        self._problems: list[PolicyProblem] = []
        for name, data in file.tools.items():
            try:
                self._tools[name] = data.contract(name)
            except ContractError as error:
                self._problems.append(document.problem(("tools", name), str(error)))

    def cases(self) -> list[Case]:
        """Return all tests.

        Raises:
            PolicyInvalid: a tool's declaration is invalid, or a tool that is called has none.
        """
        found: list[Case] = []
        self._check()
        for index, data in enumerate(self._file.cases):
            at: Path = ("cases", index)
            contracts = [self._of(data, at)]
            contracts += [self._of(e, (*at, "after", i)) for i, e in enumerate(data.after)]
            known = tuple(each for each in contracts if each is not None)
            found.append(Case(data.name, self._document.line(at), data, known))
        self._check()
        return found

    def _check(self) -> None:
        if self._problems:
            raise PolicyInvalid(self._problems)

    def _of(self, call: CallData, at: Path) -> Contract | None:
        tool = call.tool
        declared = tool.model_fields_set - {"name"}
        known = None if declared else self._tools.get(tool.name)
        if known is not None:
            return known
        if not declared and call.kind == "tool":
            near = difflib.get_close_matches(tool.name, list(self._tools), 1)
            hint = (
                f"; did you mean {near[0]!r}?" if near else f": declare it in [tools.{tool.name}]"
            )
            self._problems.append(
                self._document.problem((*at, "tool"), f"no tool {tool.name!r} is declared{hint}")
            )
            return None
        effect = {} if declared else {"effect": "read"}  # as each adapter declares a model
        try:
            return tool.model_copy(update=effect).contract(tool.name)
        except ContractError as error:
            self._problems.append(self._document.problem((*at, "tool"), str(error)))
            return None


# --- one case ------------------------------------------------------------------------------------


def _run(case: Case, policy: Policy) -> CaseResult:
    try:
        verdict = _decided(case, policy)
    except ArgumentsInvalid as error:
        message = f"the tool does not take these arguments: {error}"
        return CaseResult(case, None, message, (message,))
    expected, differences = case.data.expect, list[str]()
    for field in ("decision", "rule", "code"):
        wanted, got = getattr(expected, field), getattr(verdict, field)
        if wanted is not None and wanted != got:
            differences.append(f"{field}: {wanted!r} is expected, not {got!r}")
    if expected.message is not None and expected.message not in verdict.message:
        differences.append(f"message: {expected.message!r} is not in {verdict.message!r}")
    return CaseResult(case, verdict, "", tuple(differences))


def _decided(case: Case, policy: Policy) -> Verdict:
    """Return the policy's verdict on the call after the earlier calls, limits included.

    Raises:
        ArgumentsInvalid: a tool does not accept the arguments.
    """
    data, clock = case.data, _Clock()
    meter = Meter(policy.limits, policy.prices, clock)
    contract, *before = case.contracts
    for each, tool in zip(data.after, before, strict=True):
        clock.seconds = each.at
        for _ in range(each.times):
            _made(meter, each, tool)
    if data.run.elapsed is not None:
        clock.seconds = data.run.elapsed
    spent, run = meter.spent, data.run
    figures = Figures(
        id=run.id,
        name=run.name,
        calls=spent.calls if run.calls is None else run.calls,
        tokens=spent.tokens if run.tokens is None else run.tokens,
        cost=spent.cost if run.cost is None else run.cost,
        elapsed=clock.seconds,
    )
    view = view_of(
        contract,
        data.args,
        data.kind,
        agent=data.agent,
        calls=figures.calls,
        run=figures,
        labels=frozenset(data.labels),
    )
    with surroundings(user_input=data.user_input, resolver=fixed_resolver(data.resolves)):
        verdict = policy.decide(view)
    if verdict.decision == "deny":
        return verdict
    ticket = meter.take(view)
    verdict = ticket.over(verdict)
    paced = None if verdict.decision == "deny" else ticket.pace()
    return verdict if paced is None else paced


def _made(meter: Meter, call: EarlierData, contract: Contract) -> None:
    """Make an earlier call."""
    ticket = meter.take(view_of(contract, call.args, call.kind, agent=call.agent))
    denied = ticket.verdict is not None and ticket.verdict.decision == "deny"
    if denied or ticket.pace() is not None:
        meter.end(ticket, made=False)
    elif not call.running:
        counts = {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
        usage = {name: count for name, count in counts.items() if count is not None}
        meter.end(ticket, made=True, failed=call.failed, usage=usage or None)


class _Clock:
    """The time of a test: constant until it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> int:
        return round(self.seconds * 1e9)
