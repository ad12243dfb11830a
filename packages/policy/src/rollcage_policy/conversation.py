"""Labels that last over the runs of a conversation.

A chat is often one run for each message of the user, and the model sees in each what earlier runs
have read. So the labels of their results have to be known in later runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from rollcage import Stage, Store
from rollcage.errors import RunNotFound, SessionError, StoreError
from rollcage.trace.chain import parse

from rollcage_policy.labelling import labels_of_run
from rollcage_policy.sightings import LabelSource

if TYPE_CHECKING:
    from rollcage import Session
    from rollcage.trace.run import Event

    from rollcage_policy.labelling import RunLabels

__all__ = ["Conversation"]

_KIND: Final = "conversations"  # of the store's values
_LONGEST: Final = 1_024  # bytes of a key


class Conversation(Stage):
    """Carry labels over the runs of a conversation; it stands in `gate=` next to a policy.

    A session knows the labelled results of all earlier runs of its conversation, as if they were
    its own. They are read when it is entered: begin another conversation from time to time.

    Args:
        name: the conversation, such as the id of a chat.

    Raises:
        SessionError: the name is empty or too long.
    """

    def __init__(self, name: str) -> None:
        if not 0 < len(name.encode(errors="surrogatepass")) <= _LONGEST:
            raise SessionError(f"the name of a conversation has 1 to {_LONGEST} bytes")
        self.name = name

    def describes(self, session: Session) -> Event:  # noqa: ARG002 - the same in every session
        """Return the conversation, for the record."""
        return {"conversation": self.name}

    def opened(self, session: Session) -> None:
        """Learn the labels of the conversation's earlier runs, and add this run to it.

        Raises:
            StoreError: an earlier run can't be read, so its labels are not known.
        """
        attempt, store = session.attempt, session.store
        own, found = attempt.run.id, labels_of_run(attempt)
        while True:
            data = store.get(_KIND, self.name)
            runs: dict[str, list[str] | None] = {} if data is None else orjson.loads(data)["runs"]
            known = {
                run: self._learn(store, run, labels, found)
                for run, labels in runs.items()
                if run != own
            }
            if attempt.log is None:  # offline: the run is no new one
                return
            new = orjson.dumps({"runs": {**known, own: runs.get(own)}})
            if new == data or store.swap(_KIND, self.name, data, new):
                return

    def _learn(
        self, store: Store, run: str, known: list[str] | None, found: RunLabels
    ) -> list[str]:
        """Learn the labelled results of a run; return its labels.

        Args:
            store: the store.
            run: the id of the run.
            known: its labels, if a later session has read it already.
            found: gets its labels.
        """
        try:
            events = parse(store.read(run), run)
        except RunNotFound:
            events = []
        if not events or any(event["event"] == "pruned" for event in events):
            if known is None:
                raise StoreError(
                    f"run {run} of the conversation {self.name!r} is gone, and its labels are not "
                    f"known: begin another conversation"
                )
            if known:
                found.note_lost(run, frozenset(known))
            return known
        every: set[str] = set()
        names: dict[int, str] = {}
        for event in events:
            step: Any = event.get("step")
            if "name" in event and "step" in event:
                names[step] = event["name"]
            if "labels" in event and "outcome" in event:
                labels = frozenset(event["labels"])
                source = LabelSource(step, names.get(step, ""), run=run)
                found.note_earlier(source, labels, orjson.dumps(event["outcome"]))
                every |= labels
        return sorted(every)
