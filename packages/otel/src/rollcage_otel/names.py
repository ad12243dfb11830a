"""All names in spans and metrics; the `gen_ai` ones are from the OpenTelemetry conventions.

The conventions are in development, in a repository of their own, and no stable library has them as
constants: https://github.com/open-telemetry/semantic-conventions-genai
"""

from typing import Final

__all__ = [
    "AGENT_NAME", "APPROVAL", "APPROVAL_WAIT", "APPROVED_BY", "ARGUMENTS", "ATTEMPT", "BRANCH",
    "CALL_ID", "CAPTURE_CONTENT", "CONVERSATION", "DECISION", "EFFECT", "ERROR_TYPE",
    "FINGERPRINT", "INPUT_MESSAGES", "INPUT_TOKENS", "KIND", "MODE", "MODEL", "OPERATION",
    "ORIGIN_RUN", "ORIGIN_STEP", "OUTPUT_MESSAGES", "OUTPUT_TOKENS", "RESULT", "ROOT", "RULE",
    "RUN", "RUN_STATUS", "SCHEMA_URL", "SCOPE", "SECONDS_SAVED", "SOURCE", "STATE",
    "STEP", "STEPS", "TOKENS_SAVED", "TOOL_DURATION", "TOOL_NAME", "TOOL_TYPE", "UNDONE_STEPS",
    "UNDO_STATUS", "VERDICT_CODE",
]  # fmt: skip

SCOPE: Final = "rollcage_otel"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

# Attributes of the conventions.
OPERATION: Final = "gen_ai.operation.name"  # execute_tool, chat, invoke_agent
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
MODEL: Final = "gen_ai.request.model"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
CALL_ID: Final = "gen_ai.tool.call.id"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"  # content
INPUT_MESSAGES: Final = "gen_ai.input.messages"  # content
RESULT: Final = "gen_ai.tool.call.result"  # content
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"  # content
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"

# Attributes of our own.
RUN: Final = "rollcage.run.id"
ROOT: Final = "rollcage.run.root"
MODE: Final = "rollcage.run.mode"
ATTEMPT: Final = "rollcage.run.attempt"
SOURCE: Final = "rollcage.run.source"
RUN_STATUS: Final = "rollcage.run.status"
STEP: Final = "rollcage.step"
KIND: Final = "rollcage.step.kind"
STATE: Final = "rollcage.step.state"
EFFECT: Final = "rollcage.step.effect"
BRANCH: Final = "rollcage.step.branch"
FINGERPRINT: Final = "rollcage.step.fingerprint"
SIMULATED: Final = "rollcage.step.simulated"
ORIGIN_RUN: Final = "rollcage.origin.run"
ORIGIN_STEP: Final = "rollcage.origin.step"
DECISION: Final = "rollcage.verdict.decision"
RULE: Final = "rollcage.verdict.rule"
VERDICT_CODE: Final = "rollcage.verdict.code"
APPROVAL: Final = "rollcage.approval.id"
APPROVED_BY: Final = "rollcage.approval.by"
UNDO_STATUS: Final = "rollcage.undo.status"

# Metrics.
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"  # of the conventions
STEPS: Final = "rollcage.steps"
APPROVAL_WAIT: Final = "rollcage.approval.wait"
UNDONE_STEPS: Final = "rollcage.undo.steps"
TOKENS_SAVED: Final = "rollcage.replay.tokens_saved"
SECONDS_SAVED: Final = "rollcage.replay.seconds_saved"
