"""A person's word on a step is held against the trace as it stands when it is written."""

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from rollcage import NotReplayableWarning, tool
from rollcage.errors import SessionError
from rollcage.session.resolving import resolve_step
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.store.writer import JsonlWriter
from rollcage.trace import read_run


class Slow(JsonlStore):
    """Between the look at a run and its lock, the call that was looked at comes to its end."""

    def __init__(self, folder: Path, began: threading.Event) -> None:
        super().__init__(folder)
        self.went_on = threading.Event()
        self.calling = threading.Thread(target=self._call)
        self._began = began

    def _call(self) -> None:
        @tool(effect="write", name="resolving.lock")
        def lock() -> Any:
            self._began.set()
            assert self.went_on.wait(30)
            return threading.Lock()  # has no encoding

        with Session("job", store=self), contextlib.suppress(NotReplayableWarning):
            lock()

    def reopen(self, run: str) -> JsonlWriter:
        self.went_on.set()
        self.calling.join(30)
        return super().reopen(run)


def test_a_write_that_is_performed_meanwhile_is_not_said_to_have_never_begun(
    tmp_path: Path,
) -> None:
    began = threading.Event()
    store = Slow(tmp_path, began)
    store.calling.start()
    assert began.wait(30)
    run = store.runs()[0].run
    with pytest.raises(SessionError, match="was performed, but its result can't be replayed"):
        resolve_step(store, run, 1, happened=False)
    assert read_run(store.read(run)).steps[0].unreplayable
    said = resolve_step(store, run, 1, happened=True, result=None)
    assert said.outcome == {"status": "ok", "value": None}
