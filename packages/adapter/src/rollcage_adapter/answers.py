"""The decisions of a recorded run, one by one, to drive an agent of another framework."""

from __future__ import annotations

import dataclasses
import re
import threading
import unicodedata
from collections.abc import Collection
from typing import Any, Final

from rollcage import Session
from rollcage.errors import ReplayMiss
from rollcage.session.adapters import Answer, RunSource, ToolRequest, read_answers

__all__ = ["RecordedAnswers", "Trace"]

Trace = Session | RunSource
"""A recorded run: the session that replays it, the path of its trace, or a store and its id."""

_OTHER: Final = re.compile(r"[^a-z0-9]+")


class RecordedAnswers:
    """The answers of a recorded run's model, by position; for each adapter's `ReplayModel`.

    Args:
        trace: the run: an entered session that replays it, the path of its trace, or its store (a
            folder, a URL, or a `Store`) and its id.
        agent: the agent whose answers are used; None: all agents except the ones inside of tools.
        then: a live model that continues after the recorded answers.

    Raises:
        StoreError: the trace can't be read.
        SessionError: the session is not entered, or replays nothing.
    """

    def __init__(self, trace: Trace, *, agent: str | None = None, then: Any = None) -> None:
        self._then = then
        if isinstance(trace, Session):
            self.run, self._answers = trace.run_id, trace.recorded_answers(agent)
        else:
            self.run, self._answers = read_answers(trace, agent)
        self._whose = "" if agent is None else f" of agent {agent!r}"
        self._next = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many answers the run holds."""
        return len(self._answers)

    def next(self, offered: Collection[str] | None = None) -> Answer | None:
        """Return the next answer, each of its calls with an id and arguments; None after the last.

        Args:
            offered: the names of the agent's tools, in its framework's form; the
                answer then uses these names. None: unknown.

        Raises:
            ReplayMiss: the answer calls a tool that the agent does not have.
        """
        with self._lock:
            if self._next >= len(self._answers):
                return None
            place, answer = self._next, self._answers[self._next]
            if offered is not None:
                answer = self._renamed(answer, place, offered)
            self._next += 1
        calls = [
            ToolRequest(call.name, call.arguments or "{}", call.id or f"call-{place}-{slot}")
            for slot, call in enumerate(answer.tool_calls)
        ]
        return dataclasses.replace(answer, tool_calls=tuple(calls))

    @property
    def live(self) -> Any:
        """Return the model that continues.

        Raises:
            ReplayMiss: the agent asks for more answers than are recorded.
        """
        if self._then is None:
            raise ReplayMiss(
                f"run {self.run} holds {len(self._answers)} answers{self._whose}, all are given: "
                f"the agent asks for one more. Give ReplayModel a live model to go on with (then=)"
            )
        return self._then

    def _renamed(self, answer: Answer, place: int, offered: Collection[str]) -> Answer:
        plain: dict[str, str | None] = {}
        for name in offered:
            form = _form(name)
            # two names with one form: it is unknown which is meant
            plain[form] = None if form in plain else name
        calls: list[ToolRequest] = []
        for call in answer.tool_calls:
            same = call.name if call.name in offered else None
            found = same or plain.get(_form(call.name))
            if found is None:
                listed = ", ".join(sorted(offered)) or "none"
                raise ReplayMiss(
                    f"answer {place + 1} of run {self.run} asks for the tool {call.name!r}, which "
                    f"this agent does not have; its tools are: {listed}"
                )
            calls.append(dataclasses.replace(call, name=found))
        return dataclasses.replace(answer, tool_calls=tuple(calls))


def _form(name: str) -> str:
    """Return the common part of every framework's form of a tool's name: letters and digits."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return _OTHER.sub("", plain.lower())
