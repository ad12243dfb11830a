"""Read a model's answers from a run: the decisions that drive an agent of any framework."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from rollcage.errors import RunNotFound, TraceCorrupt
from rollcage.trace.folder import Folder
from rollcage.trace.run import Run, Step, fold_log
from rollcage.trace.store import Store, open_store
from rollcage.values.answer import Answer

__all__ = ["RunSource", "answers_of", "read_answers"]

RunSource = str | os.PathLike[str] | tuple[str | os.PathLike[str] | Store, str]
"""A recorded run: the path of its log, or a store (a folder, a URL, a `Store`) and its id."""


def read_answers(source: RunSource, agent: str | None = None) -> tuple[str, list[Answer]]:
    """Return the id of a recorded run, and the model's answers in it; see `answers_of`.

    Raises:
        RunNotFound: there is no such run.
        StoreError: the log can't be read.
    """
    if isinstance(source, tuple):
        store, run = open_store(source[0]), source[1]
    else:
        path = Path(source)
        if not path.is_file():
            raise RunNotFound(f"{path} is not the log of a run: pass its path, or (store, run id)")
        store, run = Folder(path.parent.parent), path.stem
    where = f"run {run}"
    folded = fold_log(store.read(run), where, {})
    return run, answers_of(folded, store, agent)


def answers_of(
    run: Run, store: Store, agent: str | None = None, *, up_to: int | None = None
) -> list[Answer]:
    """Return the model's answers, in the order of the requests.

    A call that failed, or has no known outcome, has no answer.

    Args:
        run: the run.
        store: the store of the run and its large values.
        agent: the name of the agent; None: all agents except agents inside of tools.
        up_to: the number of the last step that counts; None: all steps.

    Raises:
        TraceCorrupt: the record is no answer of a model.
    """
    asked = [
        step
        for steps in run.anywhere.values()
        for step in steps
        if step.effect == "model" and step.status == "ok" and (up_to is None or step.n <= up_to)
    ]
    found: list[Answer] = []
    for step in sorted(asked, key=lambda each: each.n):
        if step.agent != agent if agent is not None else _is_in_tool(run, step):
            continue
        outcome = step.result
        try:
            answer = outcome["answer"]
            if "$rollcage" in answer:
                answer = _large(store, answer["sha256"])
            found.append(Answer.from_data(answer, outcome.get("usage")))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceCorrupt(
                f"run {run.id}", 0, f"step {step.n} ({step.name}) has no answer of a model: {error}"
            ) from None
    return found


def _large(store: Store, digest: str) -> Any:
    """Return an answer kept beside the log."""
    data = store.get("blobs", digest)
    if data is None or sha256(data).hexdigest() != digest:
        raise ValueError(f"the large value {digest} is gone or damaged")
    return orjson.loads(data)


def _is_in_tool(run: Run, step: Step) -> bool:
    """Tell whether a step was made by the body of a tool."""
    owner = run.owner(step.branch)
    while owner is not None and owner.effect == "branch":
        owner = run.owner(owner.branch)
    return owner is not None
