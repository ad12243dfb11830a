"""A model's answers, as they are read out of a recorded run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Contract, RunNotFound, Session, open_store, tool
from rollcage.errors import TraceCorrupt
from rollcage.session.adapters import Answer, RunSource, read_answers

MODEL = Contract(name="model", parameters={"properties": {"ask": {"type": "string"}}})
LARGE = "x" * 100_000


def ask(session: Session, what: str, says: str | None = None) -> str:
    """Ask a model, which says this, or the same, or fails at nothing."""

    def answer(ask: str) -> str:
        if not ask:
            raise ValueError("nothing was asked")
        return says or ask

    def read(text: str) -> Answer:
        return Answer(text=text, usage={"input_tokens": len(what), "output_tokens": 1})

    given: str = session.run_call(MODEL, {"ask": what}, answer, kind="model", answer=read)
    return given


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run in which two agents and a tool ask, one of them in vain."""

    @tool(effect="write")
    def research(topic: str) -> str:
        return ask(session, f"about {topic}")

    with Session("job", store=tmp_path) as session:
        ask(session, "z", "first")
        with session.branch("side"), session.place(agent="ann"):
            ask(session, "y", LARGE)
        research("tea")
        with pytest.raises(ValueError, match="nothing was asked"):
            ask(session, "")
        ask(session, "a", "last")
    return session.run_id


Source = Callable[[Path, str], RunSource]


@pytest.mark.parametrize(
    "source",
    [
        lambda root, run: (root, run),
        lambda root, run: (open_store(root), run),
        lambda root, run: root / "logs" / f"{run}.jsonl",
    ],
    ids=["folder", "store", "log"],
)
def test_answers_come_in_the_order_of_the_requests(
    tmp_path: Path, run: str, source: Source
) -> None:
    found, answers = read_answers(source(tmp_path, run))
    assert found == run
    assert [answer.text for answer in answers] == ["first", LARGE, "last"]  # the tool's is its own
    assert answers[0].usage == {"input_tokens": 1, "output_tokens": 1}


@pytest.mark.parametrize(("agent", "texts"), [("ann", [LARGE]), ("bob", [])])
def test_answers_of_one_agent(tmp_path: Path, run: str, agent: str, texts: list[str]) -> None:
    _, answers = read_answers((tmp_path, run), agent)
    assert [answer.text for answer in answers] == texts


def test_what_is_no_log_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="pass its path"):
        read_answers(tmp_path / "logs" / "none.jsonl")


@pytest.mark.parametrize("damage", [None, b"others"], ids=["gone", "changed"])
def test_a_large_answer_that_is_not_whole_is_not_given(
    tmp_path: Path, run: str, damage: bytes | None
) -> None:
    store: Any = open_store(tmp_path)
    for digest in store.keys("blobs"):
        assert store.swap("blobs", digest, store.get("blobs", digest), damage)
    with pytest.raises(TraceCorrupt, match="gone or damaged"):
        read_answers((tmp_path, run))


def test_what_a_replay_saves_is_counted(tmp_path: Path, run: str) -> None:
    with Session("job", store=tmp_path, replay="offline") as session:
        ask(session, "z")
        ask(session, "a")
    assert session.run_id == run
    assert session.stats.tokens_saved == 4
