"""What events hold beside plain fields, as models: outcomes, verdicts, sources."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AnswerData",
    "Digest",
    "DriftData",
    "ImportedData",
    "Microseconds",
    "Outcome",
    "Part",
    "PlannedCallData",
    "StateDigests",
    "StepNumber",
    "ToolRequestData",
    "VerdictData",
]

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Microseconds = Annotated[int, Field(ge=0)]
StepNumber = Annotated[int, Field(ge=1)]
StateDigest = Annotated[str, Field(pattern="^(hmac:)?[0-9a-f]{64}$")]
StateDigests = dict[str, StateDigest | dict[str, StateDigest]]


class Part(BaseModel):
    """What every one is: none has a field that is not declared, and none is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class ToolRequestData(Part):
    """A call that a model asks for."""

    name: str
    arguments: str = Field(description="raw JSON, as the model wrote it")
    id: str = ""


class AnswerData(Part):
    """One message of a model, whatever the framework."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolRequestData] = []
    finish_reason: str = ""
    response_id: str = ""


class DriftData(Part):
    """How an output breaks the contract of its tool."""

    code: Literal[
        "output_empty",
        "output_not_json",
        "output_wrong_type",
        "output_missing_field",
        "output_too_large",
    ]
    path: str = Field(description="the place in the output, from $")
    reason: str
    reported: bool = Field(False, description="the call gave its value; else it raised this")


class Outcome(Part):
    """What became of a call: `ok` with its value, `error` with its exception, or `unknown`."""

    status: Literal["ok", "error", "unknown", "not_started"]
    value: Any = None
    cut: bool = Field(False, description="a stream whose consumer read no further")
    typed: bool = Field(False, description="comes back through the tool's return type only")
    error: dict[str, Any] | None = None
    drift: DriftData | None = Field(
        None, description="how the value breaks the contract; it is kept as it came"
    )
    lossy: str | None = Field(None, description="why the value can't come back as it was")
    usage: dict[str, int] | None = Field(None, description="tokens, by their OTel GenAI names")
    answer: AnswerData | dict[str, Any] | None = Field(
        None, description="what a model answered, in neutral form; or the blob that holds it"
    )


class VerdictData(Part):
    """What the gate decided."""

    decision: Literal["allow", "ask", "deny"]
    reason: str
    code: str
    rule: str
    remedy: str | None = Field(None, description="what may be done instead")
    shadow: VerdictData | None = Field(None, description="what a policy in shadow mode says")


class ImportedData(Part):
    """Where an imported run comes from, on whose word alone it is what happened."""

    format: Literal["otel", "langfuse", "langsmith"]
    trace: str = Field(description="the id of the trace there")
    digest: Digest = Field(description="HMAC of what was read of it under the store's key")
    skipped: dict[str, int] = Field({}, description="how many spans became no step, by why")


class PlannedCallData(Part):
    """A compensating call."""

    name: str
    version: str
    args: dict[str, Any]
