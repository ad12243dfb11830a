"""The recorded run of a test: replayed, or recorded again with the same bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from hashlib import sha256, shake_256
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import orjson
import pytest
from rollcage import (
    Clock,
    Options,
    ReplayMiss,
    Session,
    SessionError,
    Store,
    leave_behind,
    open_store,
)
from rollcage.trace.chain import parse
from rollcage.trace.recorded import LogTrace, trace_of
from rollcage_policy.detecting import Detecting
from rollcage_views import Run, Step, read_run

__all__ = ["RECORD", "Cassette", "Record", "cassette_path", "recording_at"]

Record = Literal["none", "once", "new", "rewrite"]
"""`none` replays; `once` records if there is no recording; `new` also runs and adds calls that are
not in it; `rewrite` records again.
"""
RECORD: Final[tuple[Record, ...]] = ("none", "once", "new", "rewrite")

_OURS: Final = ("store", "replay", "source", "run", "clock")
_BEGINNING: Final = 1_767_225_600_000_000_000  # 2026-01-01, in ns
_TICK: Final = 1_000_000
_BLOB: Final = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_VALUES: Final = (
    "args", "outcome", "before", "plan", "user_input", "input", "reason", "error", "value",
    "verdict",
)  # fmt: skip


def cassette_path(test: Path, name: str) -> Path:
    """Return the place of a test's recording: a file of its own, next to the test's file.

    Args:
        test: the file of the test.
        name: the name of the test in it, for example `TestMail::test_sends[a/b]`.
    """
    shown = re.sub(r"[^\w.\[\]=+@-]", "_", name.replace("::", "."))
    if shown != name.replace("::", ".") or len(shown) > 120:
        shown = f"{shown[:120]}-{sha256(name.encode()).hexdigest()[:8]}"
    return test.parent / "cassettes" / test.stem / f"{shown}.jsonl"


class Cassette:
    """The fixture `cassette`: a session that replays the test's recording, or makes it.

    Attributes:
        path: the recording; it may not exist yet.
        mode: `replay`: nothing runs; `record`: all calls run; `new`: unrecorded calls run; `live`:
            all calls run, and nothing is kept or compared.
    """

    def __init__(
        self, path: Path, name: str, command: str, record: Record, *, strict: bool, live: bool
    ) -> None:
        self.path = path
        self.mode: Literal["replay", "record", "new", "live"]
        self._name = name
        self._command = command
        self._strict = strict
        self._session: Session | None = None
        self._refused: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="rollcage-")  # readable by its owner only
        recorded = path.is_file()
        if live:
            self.mode = "live"
        elif record == "none" or (record == "once" and recorded):
            self.mode = "replay"
        elif record == "new" and recorded:
            self.mode = "new"
        else:
            self.mode = "record"

    def session(self, name: str | None = None, **options: Any) -> Session:
        """Return the test's session: enter it, sync or async. A test has one session.

        Args:
            name: the job; by default the name of the test.
            **options: as for `Session`, except its store, source, run, replay mode and clock.

        Raises:
            SessionError: a second session, an option that the cassette sets itself, or a fork.
        """
        if self._session is not None:
            raise SessionError("a cassette holds one run: split the test in two")
        if any(each.copies is not None for each in options.get("stages", ())):
            raise SessionError(
                f"a fork can't be recorded: give it a session of its own, in a store of its own:"
                f" Session({self._name!r}, store=tmp_path, stages=[Fork({str(self.path)!r}, ...)])"
            )
        if wrong := [each for each in _OURS if each in options]:
            raise SessionError(f"{', '.join(wrong)}= is for the cassette to set, not for the test")
        if self.mode == "replay" and not self.path.is_file():
            self._fail(f"There is no recording: {self.path}", "Record it", "once")
        brought = os.environ.get("ROLLCAGE_STAGE")
        if brought and self.mode != "replay":
            raise SessionError(
                f"ROLLCAGE_STAGE={brought} changes what the sessions of this process do, as a fork "
                f"does, and can't be recorded: unset ROLLCAGE_STAGE"
            )
        seed = self._name
        how: dict[str, Any] = {"replay": "off"}
        store = open_store(self._folder.name)
        store.swap("keys", "seal", None, sha256(f"rollcage-pytest|{self._name}".encode()).digest())
        if self.mode in ("replay", "new"):
            run = _put(self.path, store)
            how = {"replay": "offline", "source": run}
            if self.mode == "new":  # new calls are another attempt at the recorded run
                options.setdefault("on_divergence", "warn")
                seed = f"{seed}|{sha256(self.path.read_bytes()).hexdigest()}"
                how = {"replay": "continue", "run": run}
        given: Options = options.pop("options", Options())
        how["options"] = dataclasses.replace(given, clock=_clock(seed))
        self._session = session = Session(name or self._name, store=store, **how, **options)
        return session

    @property
    def run(self) -> Run:
        """The test's run so far: for the assertions of this package, and your own.

        During a replay, it is the recorded run, because a replay adds nothing.
        """
        if self._session is None or not self._session.run_id:
            raise SessionError("no session was opened: with cassette.session() as session")
        return read_run(trace_of(self._session.store, self._session.run_id))

    @property
    def recorded(self) -> Run | None:
        """The run that was recorded before; None without one."""
        if not self.path.is_file():
            return None
        return recording_at(self.path)

    # --- after the test --------------------------------------------------------------------------

    def refuse(self, what: str) -> NoReturn:
        """Refuse the network to a body, or to the test, during a replay."""
        self._refused.append(what)
        pytest.fail(self._network(what))

    def _network(self, what: str) -> str:
        return (
            f"{what}: while a recording is replayed, the network is refused. What reaches it goes "
            f"into a tool or a model that the session guards"
        )

    def explain(self, error: BaseException) -> None:
        """Add to the error of a failed test the calls that replay did not find, with advice."""
        miss = self._missed()
        if miss is not None:
            note = "" if miss is error else f"{miss}\n"
            error.add_note(note + self._next("If the new behaviour is right", "rewrite"))

    def conclude(self) -> None:
        """Fail a passed test if its behaviour differs, or keep the recording."""
        session = self._session
        if self.mode == "live":
            return
        if session is None or not session.run_id:
            pytest.fail(
                "the test asked for `cassette` and opened no session with it", pytrace=False
            )
        if not session.attempt.closed:
            pytest.fail("the session was not left: use `with cassette.session()`", pytrace=False)
        if self._refused:
            pytest.fail(self._network(self._refused[0]), pytrace=False)
        if self.mode == "replay":
            self._compare(session)
        elif self.mode == "record" or session.stats.misses or session.unasked():
            if unasked := session.unasked():
                leave_behind(session.store, session.run_id, unasked)
            self._keep(session)

    def close(self) -> None:
        """Forget the run; a session that was not left guards no calls of the next test."""
        session = self._session
        if session is not None and session.run_id and not session.attempt.closed:
            with contextlib.suppress(Exception):  # the test has failed for it
                session.__exit__(None, None, None)
        self._folder.cleanup()

    def _missed(self) -> ReplayMiss | None:
        entered = self._session is not None and self._session.run_id
        halted = self._session.halted if self._session is not None and entered else None
        return halted if isinstance(halted, ReplayMiss) else None

    def _compare(self, session: Session) -> None:
        miss = self._missed()
        if miss is not None:
            self._fail(str(miss), "If the new behaviour is right", "rewrite")
        recorded = self.recorded
        assert recorded is not None
        unasked = [step for number in session.unasked() if (step := recorded.step(number))]
        if not self._strict:
            unasked = [step for step in unasked if step.stays_done]
        if unasked:
            message = "\n".join(f"  step {step.step}: {_call(step)}" for step in unasked)
            what = "steps" if self._strict else "effects"
            message = f"These recorded {what} were not asked for any more:\n{message}"
            self._fail(message, "If the new behaviour is right", "rewrite")

    def _keep(self, session: Session) -> None:
        """Write the recording: its large values, then all of it at once."""
        store = session.store
        lines = store.read(session.run_id)
        data = b"".join(lines)
        blobs = {
            digest.decode(): store.get("blobs", digest.decode()) or b""
            for digest in sorted(set(_BLOB.findall(data)))
        }
        found = [
            f"  {where}{each}"
            for where, value in _values(lines, blobs)
            for each in Detecting(lambda _: "").hide(value).found
        ]
        if found:
            message = "\n".join(found)
            self._fail(
                f"Credentials would get into the recording, which was not written:\n{message}\n"
                f"Give the test a made-up one by another name, or declare it: @tool(secret=...)"
            )
        for digest, value in blobs.items():
            _write(_blob_at(self.path, digest), value)
        _write(self.path, data)

    def _fail(self, message: str, when: str = "", record: Record = "once") -> NoReturn:
        then = f"\n{self._next(when, record)}" if when else ""
        pytest.fail(f"{message}{then}", pytrace=False)

    def _next(self, when: str, record: Record) -> str:
        return f"{when}: pytest {shlex.quote(self._command)} --rollcage-record={record}"


def _clock(seed: str) -> Clock:
    """Return a clock that advances by a tick at each reading, and ids from a seed."""
    ticks, draws = itertools.count(_BEGINNING, _TICK), itertools.count()

    def drawn(size: int) -> bytes:
        return shake_256(f"{seed}|{next(draws)}".encode()).digest(size)

    return Clock(wall=lambda: next(ticks), monotonic=lambda: 0, random=drawn)


def recording_at(path: Path) -> Run:
    """Return the run of a recording.

    Raises:
        TraceCorrupt: the recording was changed or damaged.
    """
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return read_run(LogTrace("", str(path), whole))


def _put(path: Path, store: Store) -> str:
    """Put a recording into a store; return the id of its run."""
    data = path.read_bytes()
    lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
    run = str(parse(lines, str(path))[0]["run"])
    for digest in {each.decode() for each in _BLOB.findall(data)}:
        store.swap("blobs", digest, None, _blob_at(path, digest).read_bytes())
    log = store.open(run)
    try:
        for line in lines:
            log.append(line)
    finally:
        log.close()
    return run


def _blob_at(path: Path, digest: str) -> Path:
    """Return the place of a large value in a recording."""
    return path.parent / "blobs" / digest[:2] / digest


def _values(lines: list[bytes], blobs: dict[str, bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the agent's values in a recording, each with its place."""
    names: dict[int, str] = {}
    for line, event in enumerate(parse(lines, "the recording"), 1):
        number = event.get("step")
        if number is not None:
            names.setdefault(number, event.get("name", ""))
        step = "" if number is None else f"step {number} "
        name = f"({names[number]}) " if number is not None and names[number] else ""
        for field in _VALUES:
            if field in event:
                yield f"line {line}: {step}{name}{field} ", event[field]
    for digest, blob in blobs.items():
        yield f"blob {digest[:8]} ", orjson.loads(blob)


def _call(step: Step) -> str:
    arguments = ", ".join(f"{k}={orjson.dumps(v).decode()}" for k, v in step.args.items())
    return f"{step.name}({arguments})"


def _write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all; an equal file is left alone."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)
