"""Open the run of a session: find it by name, read it, and continue or begin it."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from rollcage.errors import (
    RollcageError,
    RunAbandoned,
    RunInUse,
    RunNotFound,
    RunTooOld,
    SessionError,
)
from rollcage.replay.source import Source, copy_blobs, find_source, where_given
from rollcage.trace.chain import FORMAT, Chain, attested_head, held_to, parse
from rollcage.trace.endings import OVER, check_open, check_whole, ended_as
from rollcage.trace.keys import job_key
from rollcage.trace.run import Run, fold_lines, fold_log
from rollcage.trace.store import store_option
from rollcage.values.codec import encode

if TYPE_CHECKING:
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Fold
    from rollcage.trace.store import Store

__all__ = ["Opened", "name_of_script", "open_run"]

_log: Final = logging.getLogger("rollcage")
_SOME: Final = 50  # lines at the end of a log; at least one of these has a time


class Opened(NamedTuple):
    """Hold a run that was read, and its log; the log is None if nothing may be written.

    `attested`: the head of the log that the store attests so far.
    `recorded_in`: the store and the id from which the lines were read, if any.
    """

    run: Run
    log: Chain | None
    recorded_in: Source | None = None
    attested: bytes | None = None


def _whole(run: Run) -> Run:
    """Refuse an interrupted copy.

    Raises:
        SessionError: make the copy again.
    """
    if run.copied:
        raise SessionError(
            f"run {run.id} is a copy of run {run.copied} that was cut off before its end, so "
            f"nothing was done in it: make it again"
        )
    return run


def _begun(run: Run, known: str, store: Store) -> Run:
    """Refuse a run without a line.

    Raises:
        RunNotFound: there is no such run.
    """
    if not run.id:
        raise RunNotFound(f"there is no run {known} in {store.url}")
    return run


def open_run(session: Session, folds: dict[str, list[Fold]]) -> Opened:
    """Find and read the run of a session, and write the attempt's first line.

    Raises:
        SessionError: the name of the session quotes a known secret.
        RunInUse: another process is writing the run.
        RunNotFound: a required run does not exist.
        StoreError: the run can't be read or written.
    """
    store, replay, options = session.store, session.replay, session.options
    for opening in session.hooks.opening:
        opening(session)
    _check_name(session)
    session.described = session.gate.describe(session)
    key = job_key(session.name, session.input, session.seal)
    seen = store.get("names", key)
    known = session.run if session.run is not None else None if seen is None else seen.decode()
    if replay in ("offline", "verify"):
        given = known if session.source is None else session.source
        if given is None:
            raise _nothing_to_replay(session)
        source, lines = find_source(given, store)
        where = f"run {source.run}"
        found = _whole(fold_log(lines, where, folds))
        check_whole(found)
        _check_seed(session, found)
        return Opened(found, None, source)
    starts = session.source is not None and not _goes_on(session, store, known)
    if session.begins_copy or starts:
        return _copied(session, store, folds, key, seen)
    if replay == "off":
        known = None
    elif replay == "resume" and known is None:
        raise _nothing_to_replay(session)
    if known is not None and session.run is None and replay == "auto":
        known = None if ended_as(store, known) in OVER else known
    if known is not None:
        log = Chain(store.open(known, take=options.take))
        try:
            attested = attested_head(store, known)
            held = held_to(log.lines(), attested, log.log.where)
            found = fold_log(held, log.log.where, folds)
            opened = Opened(_whole(_begun(found, known, store)), log, attested=attested)
            status = opened.run.status if session.run is None else ""
            if status == "abandoned" and replay == "resume":
                raise RunAbandoned(
                    f"run {known} was set aside, so nothing resumes it. Begin another one with "
                    f'replay="off", or look at it: rollcage show {known}{store_option(store)}'
                )
            if status == "abandoned" or (status == "ok" and replay == "auto"):
                log.close()  # another session ended the run after the check of its last line
                known = None
            else:
                _check_resumed(session, opened.run, log)
                _attempt(session, opened)
                return opened
        except BaseException:
            _close(log)
            raise
    return _new(session, store, folds, key, seen)


def _check_resumed(session: Session, run: Run, log: Chain) -> None:
    """Refuse to resume a run, before anything is recorded."""
    check_open(run, session.store)
    _check_input(session, log)
    _check_seed(session, run)
    _check_age(session, run.id)
    _check_fork(session, run)
    for resuming in session.hooks.resuming:
        resuming(session, run.id)
    if session.options.before_resume is not None:
        session.options.before_resume(run.id)


def _check_fork(session: Session, run: Run) -> None:
    """Refuse a fork without the parts of it that its log only names, and a stage of another fork.

    Raises:
        SessionError: names the way to go on.
    """
    copier, forked = session.copier, run.forked
    if copier is not None:
        source = where_given(copier.copies or "", session.store).run
        if forked is None or forked["from"] != source:
            raise SessionError(
                f"run {run.id} was not begun as a copy of run {source}, so this "
                f"{type(copier).__name__} does not go on with it: leave run= out to begin another"
            )
        return
    if forked is None or not session.finishes_undo:  # an undo makes no call of the program
        return
    change, given = forked.get("change"), forked.get("answers", ())
    needs = [f"answers ({', '.join(given)})"] if given else []
    if change in ("model", "policy", "tools"):
        needs.append(f"another {change} ({forked.get('to', '')})")
    if needs:
        raise SessionError(
            f"run {run.id} is a fork of run {forked['from']} with {' and '.join(needs)}, and its "
            f"log has the names of these only. To go on with it, give this session the same fork "
            f"in stages=, beside run=; or fork run {run.id}"
        )


def _nothing_to_replay(session: Session) -> RunNotFound:
    """Return the error of a job without a run; it mentions a run with another input."""
    name, store = session.name, session.store
    others = [name] if store.get("names", name) is not None else []
    others += store.keys("names", f"{name}\n", 1)
    if not any(key == name or key.startswith(f"{name}\n") for key in others):
        return RunNotFound(f"the store has no run of {name!r} to replay")
    which = "without an input" if session.input is None else "with this input"
    return RunNotFound(
        f"the store has no run of {name!r} {which} to replay; it has one with another input. Pass "
        f"the input that it had as input=, or the run's id as source="
    )


def _check_input(session: Session, log: Chain) -> None:
    """Refuse a run that was named by its id and has another input.

    Raises:
        SessionError: the run belongs to another job.
    """
    if session.run is None or session.input is None:
        return
    begins = orjson.loads(session.store.read(session.run)[0])
    if begins.get("input") != orjson.loads(orjson.dumps(_encoded(session))):
        raise SessionError(
            f"{log.log.where} had {'another' if 'input' in begins else 'no'} input: it is another "
            f'job. Pass the input that it had, or start a new run with replay="off"'
        )


def _check_seed(session: Session, run: Run) -> None:
    """Refuse another seed than the run's; without a given seed, the run's seed applies.

    Raises:
        SessionError: the worlds differ, so no recorded step would match.
    """
    if session.options.seed not in ("", run.seed):
        raise SessionError(
            f"run {run.id} was begun with seed={run.seed!r}, not {session.options.seed!r}: pass "
            f'that one, or start a new run with replay="off"'
        )


def _encoded(session: Session) -> Any:
    """Return the input as the log has it: without quotations of its secrets, and of others."""
    from rollcage.gate.sealing import Sealing  # only an input needs it here

    seal = Sealing(session.seal)
    encoded = encode(session.input, seal, path="input")
    line: Event = {"event": "run", "input": seal.hide(encoded).value}
    for conceal in session.hooks.conceal:
        line = conceal(line)
    return line["input"]


def _check_name(session: Session) -> None:
    """Refuse a name that quotes a secret of the session, or of a session around it.

    Names are written and told as they are: a job is found by its name.
    """
    for conceal in session.hooks.conceal:
        if conceal({"event": "run", "name": session.name})["name"] != session.name:
            raise SessionError(
                "the name of this session quotes a secret, and names are written as they are: name "
                "the session after what it does"
            )


def _check_age(session: Session, run: str) -> None:
    """Refuse a run whose last line is older than the session allows.

    Raises:
        RunTooOld: names the ways to proceed.
    """
    within = session.options.resume_within
    if within is None:
        return
    assert isinstance(within, dt.timedelta)
    time = _last_time(session.store.read(run, -_SOME)) or _last_time(session.store.read(run))
    age = dt.timedelta(microseconds=session.options.clock.wall() // 1000 - time)
    if age > within:
        at = store_option(session.store)
        raise RunTooOld(
            f"run {run} of {session.name!r} was last written to {_seconds(age)} ago, and "
            f"resume_within={_seconds(within)}. To resume it all the same, pass a longer "
            f"resume_within=; to undo what it did: rollcage undo {run}{at}; to keep that and start "
            f"over: rollcage abandon {run}{at}"
        )


def _last_time(lines: list[bytes]) -> int:
    """Return the time of the last line with a time (Unix, µs); 0 without one."""
    for line in reversed(lines):
        time = orjson.loads(line).get("time")
        if time is not None:
            return int(time)
    return 0


def _seconds(span: dt.timedelta) -> str:
    return str(dt.timedelta(seconds=span // dt.timedelta(seconds=1)))


def _new(
    session: Session, store: Store, folds: dict[str, list[Fold]], key: str, seen: bytes | None
) -> Opened:
    """Begin a run, and point the job's pointer at it."""
    run = session.options.clock.run_id("" if seen is None else seen.decode())
    log = Chain(store.open(run))
    try:
        opened = Opened(Run(folds), log)
        begins: Event = {
            "event": "run", "format": FORMAT, "run": run, "name": session.name,
            "time": session.options.clock.wall() // 1000,
        }  # fmt: skip
        if session.input is not None:
            begins["input"] = _encoded(session)
        if session.actor:
            begins["actor"] = session.actor
        if session.options.seed:
            begins["seed"] = session.options.seed
        log.append(begins)
        opened.run.apply(begins)
        _attempt(session, opened)
        if not store.swap("names", key, seen, run.encode()):
            raise RunInUse(
                f"another session of {session.name!r} has begun at the same moment: start this one "
                f"again"
            )
    except BaseException:
        _close(log)
        raise
    return opened


def _copied(
    session: Session, store: Store, folds: dict[str, list[Fold]], key: str, seen: bytes | None
) -> Opened:
    """Begin a run with a copy of another run's lines, whose steps answer as borrowed ones."""
    copier = session.copier
    given = session.source if copier is None else copier.copies
    assert given is not None
    (home, source), lines = find_source(given, store)
    where = f"run {source}"
    before = source if copier is not None or seen is None else seen.decode()
    run = session.options.clock.run_id(before)
    recorded = parse(lines, where)
    fold_lines(recorded[:1], where, {})  # refuses a line that can't begin a run
    copied = _copied_lines(recorded, run, session.name)
    copy_blobs(lines, home, store)
    found = fold_lines(copied, where, folds)
    check_whole(found)
    opened = Opened(found, Chain(store.open(run)))
    assert opened.log is not None
    try:
        begins: list[Event] = [
            {"event": "forked", "run": run, "name": session.name, "from": source, "continues": True}
        ]
        if copier is not None:
            begins = copier.copied(session, found, copied)
        if found.imported is not None and not begins[0].get("dry"):
            raise SessionError(
                f"run {source} was imported, so nobody knows which of its writes were made: a fork "
                f"of it can't be live, and no session goes on from it"
            )
        for line in copied:
            opened.log.append(line)
        for line in begins:
            line["time"] = session.options.clock.wall() // 1000
            opened.log.append(line)
            opened.run.apply(line)
        _attempt(session, opened)
        if copier is None and not store.swap("names", key, seen, run.encode()):
            raise RunInUse(f"another session of {session.name!r} has begun: start this one again")
    except BaseException:
        _close(opened.log)
        raise
    return opened


def _copied_lines(events: list[Event], run: str, name: str) -> list[Event]:
    """Return the lines of a run for the log of another one.

    The first says that it is a copy, so that one that was cut off is not taken for the run itself.
    """
    source = events[0]
    first: Event = {"event": "run", "format": FORMAT, "run": run, "name": name}
    kept = ("time", "input", "actor", "seed", "imported")
    first.update((field, source[field]) for field in kept if field in source)
    first["copied"] = source["run"]
    rest = [{field: each[field] for field in each if field != "hash"} for each in events[1:]]
    return [first, *rest]


def _goes_on(session: Session, store: Store, known: str | None) -> bool:
    """Tell whether the job's newest run already goes on from `source`."""
    if session.source is None or known is None or session.replay == "off":
        return False
    lines = store.read(known)
    source = where_given(session.source, store).run
    return orjson.loads(lines[0]).get("copied") == source and not (
        session.replay == "auto" and ended_as(store, known) in OVER
    )


def _attempt(session: Session, opened: Opened) -> None:
    """Write the line that makes the run this attempt's."""
    assert opened.log is not None
    line: Event = {
        "event": "attempt", "id": session.options.clock.random(12).hex(),
        "time": session.options.clock.wall() // 1000,
    }  # fmt: skip
    if session.replay != "auto":
        line["replay"] = session.replay
    if session.on_divergence != "halt":
        line["on_divergence"] = session.on_divergence
    if session.described:
        line["gate"] = session.described
    if opened.run.attempts:
        line["number"] = opened.run.attempts + 1
    for conceal in session.hooks.conceal:  # the gate's description may quote the user input
        line = conceal(line)
    opened.log.append(line)
    opened.log.wait()
    opened.run.apply(line)


def _close(log: Chain) -> None:
    with contextlib.suppress(RollcageError):  # the error that is raised says more
        log.close()


# --- naming ---


def name_of_script() -> str:
    """Return the name of the running script, without `.py`, for a job without a name.

    Raises:
        SessionError: no script of the user's own is running.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():  # a prompt, `-c`, or what comes from stdin
        raise _nameless("no script is running")
    path = Path(file).resolve()
    if any(path.is_relative_to(folder) for folder in _installed()):
        raise _nameless(f"{path.name} is not a script of yours")
    name = path.stem if spec is None else str(spec.name).removesuffix(".__main__")
    _log.warning("this session was given no name: it is called %r, after its script", name)
    return name


def _nameless(why: str) -> SessionError:
    return SessionError(f'{why}, so this session has no name: say which job it is, Session("name")')


def _installed() -> set[Path]:
    """Return the folders of programs that run users' code: pytest, ipython, uvicorn."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return {Path(sysconfig.get_path(kind)).resolve() for kind in kinds}
