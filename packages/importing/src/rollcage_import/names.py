"""The attributes of a span by their writers: the newest name first.

`gen_ai.*` of the conventions and their earlier names, OpenInference (`llm.*`, `tool.*`,
`input.value`), OpenLLMetry (`traceloop.*`), and the AI SDK of Vercel (`ai.*`).
"""

from __future__ import annotations

from typing import Final

from rollcage_import.spans import Kind

__all__ = [
    "AGENT", "ANSWER", "ARGUMENTS", "CALL_ID", "FINISH", "INPUT_TOKENS", "KINDS",
    "MESSAGES", "MODEL", "NAMES", "OUTPUT_TOKENS", "RESULT",
]  # fmt: skip

KINDS: Final[dict[str, dict[str, Kind]]] = {
    "gen_ai.operation.name": {
        "chat": "model", "text_completion": "model", "generate_content": "model",
        "execute_tool": "tool", "invoke_agent": "agent",
    },
    "openinference.span.kind": {
        "LLM": "model", "TOOL": "tool", "RETRIEVER": "tool", "AGENT": "agent",
    },
    "traceloop.span.kind": {"tool": "tool", "agent": "agent"},
    "llm.request.type": {"chat": "model", "completion": "model"},
    "ai.operationId": {
        "ai.toolCall": "tool", "ai.generateText.doGenerate": "model",
        "ai.streamText.doStream": "model", "ai.generateObject.doGenerate": "model",
        "ai.streamObject.doStream": "model",
    },
}  # fmt: skip
"""By attribute and value; a span with one of these attributes and another value is no step."""

AGENT: Final = ("gen_ai.agent.name", "agent.name", "traceloop.entity.name")
MODEL: Final = (
    "gen_ai.request.model", "gen_ai.response.model", "llm.model_name", "llm.request.model",
    "llm.response.model", "ai.model.id",
)  # fmt: skip
NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "tool": ("gen_ai.tool.name", "tool.name", "traceloop.entity.name", "ai.toolCall.name"),
    "agent": AGENT,
    "model": MODEL,
    "other": (),
}
CALL_ID: Final = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
ARGUMENTS: Final = (
    "gen_ai.tool.call.arguments", "tool.parameters", "ai.toolCall.args", "input.value",
    "traceloop.entity.input",
)  # fmt: skip
RESULT: Final = (
    "gen_ai.tool.call.result", "ai.toolCall.result", "output.value", "traceloop.entity.output",
)  # fmt: skip
MESSAGES: Final = (
    "gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "llm.prompts",
    "ai.prompt.messages", "input.value", "traceloop.entity.input",
)  # fmt: skip
ANSWER: Final = (
    "gen_ai.output.messages", "gen_ai.completion", "llm.output_messages", "llm.completions",
    "ai.response.text", "output.value", "traceloop.entity.output",
)  # fmt: skip
FINISH: Final = (
    "gen_ai.response.finish_reasons", "llm.response.finish_reason", "ai.response.finishReason",
)  # fmt: skip
INPUT_TOKENS: Final = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
    "llm.usage.prompt_tokens", "ai.usage.promptTokens",
)  # fmt: skip
OUTPUT_TOKENS: Final = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens", "ai.usage.completionTokens",
)  # fmt: skip
