"""LangChain's own standard suites pass on guarded tools and guarded models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import ArgsSchema, BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_tests.integration_tests import ChatModelIntegrationTests, ToolsIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests, ToolsUnitTests
from pydantic import BaseModel
from rollcage import Session
from rollcage_langchain import guard_model, guard_tools


class Guarded:
    """Gives each test a session of its own."""

    session: Session

    @pytest.fixture(autouse=True)
    def _in_a_session(self, tmp_path: Path) -> Iterator[None]:
        with Session("standard", store=tmp_path) as session:
            self.session = session
            yield


# --- tools ---------------------------------------------------------------------------------------


class Product(BaseModel):
    """Two numbers."""

    a: int
    b: int


class Multiply(BaseTool):
    """A tool as a class."""

    name: str = "multiply"
    description: str = "Multiplies two numbers."
    args_schema: ArgsSchema | None = Product
    factor: int = 1

    def _run(self, a: int, b: int) -> int:
        return a * b * self.factor


def divide(a: float, b: float) -> tuple[str, dict[str, float]]:
    """Divide a number by another one."""
    return f"about {a // b}", {"exactly": a / b}


class GuardedMultiply(Guarded):
    """What both suites are told of the class."""

    @property
    def tool_constructor(self) -> BaseTool:
        return guard_tools([Multiply(factor=2)], self.session)[0]

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"a": 2, "b": 3}


class GuardedDivide(Guarded):
    """What both suites are told of the function."""

    @property
    def tool_constructor(self) -> BaseTool:
        tool = StructuredTool.from_function(divide, response_format="content_and_artifact")
        return guard_tools([tool], self.session)[0]

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"a": 7, "b": 2}


class TestClassUnit(GuardedMultiply, ToolsUnitTests):
    """A guarded tool that is a class."""


class TestClassIntegration(GuardedMultiply, ToolsIntegrationTests):
    """A guarded tool that is a class."""


class TestFunctionUnit(GuardedDivide, ToolsUnitTests):
    """A guarded tool made of a function."""


class TestFunctionIntegration(GuardedDivide, ToolsIntegrationTests):
    """A guarded tool made of a function."""


# --- models --------------------------------------------------------------------------------------


class ChatObliging(BaseChatModel):
    """Answers as it is asked: with calls of the tools that it is given, or with a text."""

    model: str = "obliging-1"
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    stop: list[str] | None = None
    max_retries: int | None = None

    @property
    def _llm_type(self) -> str:
        return "obliging"

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **kwargs: Any) -> Any:
        """As providers do it."""
        formatted = [convert_to_openai_tool(each) for each in tools]
        return self.bind(tools=formatted, tool_choice=tool_choice, **kwargs)

    def _answer(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
        calls: list[Any] = []
        tools = [each["function"] for each in kwargs.get("tools") or ()]
        if tools and not isinstance(messages[-1], ToolMessage):
            named = [each for each in tools if each["name"] == kwargs.get("tool_choice")]
            tool = (named or tools)[0]
            properties = tool["parameters"].get("properties", {})
            values: dict[str, Any] = {"integer": 3, "number": 1.5}
            text = str(messages[-1].content)
            args = {n: values.get(each.get("type"), text) for n, each in properties.items()}
            calls.append({"name": tool["name"], "args": args, "id": "call-1", "type": "tool_call"})
        return AIMessage(
            "" if calls else "Gladly, as you say.",
            tool_calls=calls,
            response_metadata={"model_name": kwargs.get("model", self.model)},
            usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        )

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        answer = self._answer(messages, kwargs)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages, kwargs)
        for word in str(answer.content).split():
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        last = AIMessageChunk(
            content="",
            tool_calls=answer.tool_calls,
            response_metadata=answer.response_metadata,
            usage_metadata=answer.usage_metadata,
        )
        yield ChatGenerationChunk(message=last)


class GuardedModel(Guarded):
    """What both suites are told of the model."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return type(guard_model(ChatObliging(), self.session))

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "obliging-2"}

    @property
    def model_override_value(self) -> str:
        return "obliging-3"


class TestModelUnit(GuardedModel, ChatModelUnitTests):
    """A guarded model."""


class TestModelIntegration(GuardedModel, ChatModelIntegrationTests):
    """A guarded model."""
