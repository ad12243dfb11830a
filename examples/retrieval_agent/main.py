"""A LangChain agent with retrieval, memory and structured output: killed, resumed, replayed."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from pydantic import BaseModel
from rollcage import Session
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

HANDBOOK = (
    "Refunds are paid within 14 days.",
    "Parcels to islands take three days more.",
    "Gift cards are never refunded.",
)
WORDS = sorted(set(re.findall(r"\w+", " ".join(HANDBOOK).lower())))
EFFECTS: dict[str, Literal["read"]] = {"search_handbook": "read"}


class WordEmbeddings(Embeddings):
    """Counts words. It stands in for a real model of embeddings, so that this runs offline."""

    def embed_query(self, text: str) -> list[float]:
        said = re.findall(r"\w+", text.lower())
        return [float(said.count(word)) for word in WORDS]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class Answer(BaseModel):
    """What the agent answers, as data."""

    text: str
    refundable: bool


def calling(name: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{name}"}])


FIRST = (
    calling("search_handbook", query="are gift cards refunded"),
    calling("open_ticket", subject="gift card"),
    calling("Answer", text="No: gift cards are never refunded.", refundable=False),
)
SECOND = (calling("Answer", text="You asked about a gift card.", refundable=False),)


class ScriptedModel(BaseChatModel):
    """Answers by a script, by how many answers the conversation has after the last question."""

    script: tuple[AIMessage, ...]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        kinds = [message.type for message in messages]
        turn = kinds[len(kinds) - kinds[::-1].index("human") :].count("ai")
        print(f"  the model is asked; questions in memory: {kinds.count('human')}", flush=True)
        if turn == 2 and "DIE" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return ChatResult(generations=[ChatGeneration(message=self.script[turn])])


def open_ticket(subject: str) -> str:
    """Open a ticket."""
    with Path("tickets.txt").open("a", encoding="utf-8") as file:
        file.write(f"{subject}\n")
    print("  a ticket is opened", flush=True)
    return "ticket 1"


def tools(handbook: tuple[str, ...] = HANDBOOK) -> list[Any]:
    """LangChain's own retriever, and a function."""
    store = InMemoryVectorStore(WordEmbeddings())
    store.add_documents([Document(text) for text in handbook])
    found = create_retriever_tool(
        store.as_retriever(search_kwargs={"k": 1}), "search_handbook", "Search the handbook."
    )
    return [found, StructuredTool.from_function(open_ticket)]


def ask(question: str, script: tuple[AIMessage, ...], *, resumed: bool = False) -> Answer:
    """One question in the customer's conversation, which LangGraph keeps."""
    thread: Any = {"configurable": {"thread_id": "customer-7"}}
    asked: Any = {"messages": [{"role": "user", "content": question}]}
    ours = JsonPlusSerializer(allowed_msgpack_modules=[(Answer.__module__, "Answer")])
    saver = SqliteSaver(sqlite3.connect("memory.db", check_same_thread=False), serde=ours)
    with Session("support", input=question) as session:
        agent: Any = create_agent(
            guard_model(ScriptedModel(script=script), session),
            guard_tools(tools(), session, effects=EFFECTS),
            middleware=[RollcageMiddleware(session)],
            response_format=ToolStrategy(Answer),
            checkpointer=saver,
        )
        state = agent.invoke(None if resumed else asked, thread)
    stats = session.stats
    print(f"  {stats.seen + stats.hits} steps were there, {stats.misses} run", flush=True)
    answer = state["structured_response"]
    assert isinstance(answer, Answer)
    return answer


def replay() -> str:
    """The same decisions and findings, offline: the handbook is empty by now."""
    with Session("support", input="May I return a gift card?", replay="offline") as session:
        agent: Any = create_agent(
            guard_model(ScriptedModel(script=()), session),
            guard_tools(tools(handbook=("Nothing.",)), session, effects=EFFECTS),
            middleware=[RollcageMiddleware(session)],
            response_format=ToolStrategy(Answer),
        )
        state = agent.invoke({"messages": [("user", "May I return a gift card?")]})
        assert session.stats.misses == 0
    found = next(message for message in state["messages"] if message.type == "tool")
    return str(found.text)


def start(*arguments: str, **environment: str) -> int:
    """A process of its own; how it ended."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def main() -> None:
    """Kill it after the ticket, start it again, ask once more, replay."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            print("the first process:", flush=True)
            assert start("ask", DIE="yes") == -signal.SIGKILL
            print("killed\n\nthe second process:", flush=True)
            assert start("again") == 0
            assert Path("tickets.txt").read_text(encoding="utf-8") == "gift card\n"
            print("one ticket\n\na second question, in the same conversation:", flush=True)
            assert start("second") == 0
            print("\nreplayed offline, from the trace alone:")
            found = replay()
            print(f"  the retriever gave: {found}")
            assert found == "Gift cards are never refunded."
        finally:
            os.chdir(home)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask" | "again" as what]:
            answer = ask("May I return a gift card?", FIRST, resumed=what == "again")
            assert answer == Answer(text="No: gift cards are never refunded.", refundable=False)
        case ["second"]:
            print(f"  {ask('What did I ask about?', SECOND).text}")
        case _:
            main()
