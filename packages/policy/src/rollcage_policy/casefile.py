"""The models of a file of policy tests; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    model_validator,
)
from rollcage import Contract
from rollcage.gate import Decision

from rollcage_policy.lines import Path
from rollcage_policy.recorded import Effect

__all__ = ["NAMES", "CallData", "CaseData", "CasesFile", "EarlierData", "ExpectData", "ToolData"]

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e9)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ToolData(_Data):
    """A tool, with the fields that a policy can use; see `rollcage.Contract`.

    Attributes:
        reversible: whether the tool declares an undo; a tool that doesn't write is reversible.
    """

    version: str = ""
    effect: Effect = "write"
    risk: str = ""
    reversible: bool | None = None
    idempotent: bool = False
    permissions: list[str] = []

    @model_validator(mode="after")
    def _has_something_to_take_back(self) -> Self:
        if self.reversible is not None and self.effect != "write":
            raise ValueError(f"reversible is for tools that write; this one is {self.effect!r}")
        return self

    def contract(self, name: str) -> Contract:
        """Return the tool's contract, which accepts any arguments.

        Raises:
            ContractError: the declaration is invalid.
        """
        return Contract(
            name=name,
            parameters={"type": "object"},
            undo=_some_undo if self.reversible else None,
            **self.model_dump(include={"version", "effect", "risk", "idempotent"}),
            permissions=tuple(self.permissions),
        )


class NamedToolData(ToolData):
    """A tool that is declared in the call itself."""

    name: Name


def _some_undo() -> None:
    """Stand for an undo."""


def _as_tool(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


def _as_expected(given: Any) -> Any:
    return {"decision": given} if isinstance(given, str) else given


def _as_several(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class CallData(_Data):
    """A call.

    Attributes:
        tool: the name of a tool of this file's `[tools]`, or of the tools that the tests run with;
            or the tool itself, as a table.
        kind: whether it is a call of a tool, or of a model.
        args: its arguments, as the trace shows them: JSON.
        agent: the name of the agent that makes it.
    """

    tool: Annotated[NamedToolData, BeforeValidator(_as_tool)]
    kind: Literal["tool", "model"] = "tool"
    args: dict[str, Any] = {}
    agent: str = ""


class EarlierData(CallData):
    """A call before the decided call; for limits, and loops.

    Attributes:
        times: how often the call was made.
        at: the time of the call: seconds after the session was opened.
        failed: whether the call raised.
        running: whether the call has not ended.
        input_tokens: the input tokens of each model call.
        output_tokens: the output tokens of each model call.
    """

    times: Annotated[int, Field(ge=1, le=10_000)] = 1
    at: Seconds = 0.0
    failed: bool = False
    running: bool = False
    input_tokens: Count | None = None
    output_tokens: Count | None = None


class RunData(_Data):
    """The run's figures; by default, the figures of the earlier calls."""

    id: str = ""
    name: str = ""
    calls: Count | None = None
    tokens: Count | None = None
    cost: Seconds | None = None
    elapsed: Seconds | None = None


class ExpectData(_Data):
    """The expected verdict.

    Attributes:
        decision: `allow`, `ask` or `deny`.
        rule: the rule or limit that decides; `default` if none matches.
        code: the verdict's code.
        message: a part of the message to the model.
    """

    decision: Decision
    rule: str | None = None
    code: str | None = None
    message: str | None = None


class CaseData(CallData):
    """A test: a call and its expected verdict.

    Attributes:
        name: the purpose of the test.
        labels: the labels of the values in the arguments.
        user_input: the user input, one text or several.
        run: the run's figures.
        resolves: addresses by host name; other names are unknown, and nothing is looked up.
        after: the calls before it, in their order.
        expect: the expected verdict: a decision, or a table.
    """

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    labels: list[Name] = []
    user_input: Annotated[list[str] | None, BeforeValidator(_as_several)] = None
    run: RunData = RunData()
    resolves: dict[str, list[str]] = {}
    after: list[EarlierData] = []
    expect: Annotated[ExpectData, BeforeValidator(_as_expected)]

    @model_validator(mode="after")
    def _comes_last(self) -> Self:
        at = [each.at for each in self.after]
        if at != sorted(at):
            raise ValueError("list the calls of after in the order in which they were made")
        if at and self.run.elapsed is not None and self.run.elapsed < at[-1]:
            raise ValueError("run.elapsed is earlier than the last call of after")
        return self


class CasesFile(_Data):
    """A file of tests.

    Attributes:
        policy: the file of the policy, relative to this file's folder.
        tools: the declarations of the tools in the cases.
        cases: the tests.
    """

    version: Literal[1]
    policy: Annotated[str, StringConstraints(min_length=1)] | None = None
    tools: dict[Name, ToolData] = {}
    cases: Annotated[list[CaseData], Field(min_length=1)]


NAMES: Final[dict[Path, Any]] = {
    (): CasesFile.model_fields,
    ("cases",): CaseData.model_fields,
    ("cases", "tool"): NamedToolData.model_fields,
    ("cases", "expect"): ExpectData.model_fields,
    ("cases", "run"): RunData.model_fields,
    ("cases", "after"): EarlierData.model_fields,
    ("cases", "after", "tool"): NamedToolData.model_fields,
}
"""The allowed names at each place, to suggest the nearest one for a mistyped name."""
