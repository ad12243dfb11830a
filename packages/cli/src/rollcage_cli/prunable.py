"""Which runs may be pruned, and what goes with them: nothing that anybody may need goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import orjson
from rollcage.errors import RollcageError, RunNotFound, StoreError
from rollcage.store import RunInfo, RunTrace, Store, check_attested, store_option
from rollcage.trace import check_events, read_run
from rollcage_views import lineage_of, resolve_commands, standing

from rollcage_cli.redact import Redaction, sealed

__all__ = ["Choice", "choices", "drop_unused", "prune_run"]

_DONE: Final = ("ok", "abandoned")  # no session builds on a run that ended so
_WORKS: Final = ("record", "resume")  # others look back at what these did
_PLANS: Final = "plans"  # documents: outlines of plans, by their digests
_DIGEST: Final = re.compile(rb'"([0-9a-f]{64})"')
_APPROVALS: Final = "approvals"  # the kind of their documents
_ASKED: Final = b'{"event":"approval.requested"'
_PARTS: Final = ("decision", "use", "request")  # in this order, what is left of one is never valid


class Choice(NamedTuple):
    """What is to become of an old run.

    Attributes:
        info: of the run.
        lines: of its trace; 0 where it was not read.
        size: of its trace, in bytes.
        stays: why it stays; empty where it may go.
        helps: the command that would change that, if one does.
    """

    info: RunInfo
    lines: int = 0
    size: int = 0
    stays: str = ""
    helps: str = ""


def choices(store: Store, before: int, held: Iterable[str]) -> list[Choice]:
    """What is to become of each run that ended before then, in the order in which they began.

    A run goes only with all that build on it: so none is missed where somebody goes on or undoes.

    Args:
        store: which has them.
        before: Unix time, µs.
        held: runs that are to stay.
    """
    infos = store.runs()
    builds: dict[str, list[str]] = {}
    forks: dict[str, list[str]] = {}
    for info in infos:
        if info.source is not None and info.mode in _WORKS:
            builds.setdefault(info.source, []).append(info.run)
        elif info.source is not None and info.mode == "fork":
            forks.setdefault(info.source, []).append(info.run)
    stay, hold = set[str](), set(held)
    chosen: list[Choice] = []
    for info in reversed(infos):  # what builds on a run comes after it
        if info.pruned is not None:
            continue
        later = builds.get(info.run, [])
        staying = [run for run in (*later, *forks.get(info.run, ())) if run in stay]
        if info.run in hold:
            choice = Choice(info, stays="held")
        elif staying:
            choice = Choice(info, stays=f"run {staying[-1]} builds on it, and stays")
        elif info.time >= before:
            choice = None
        else:
            choice = _look(store, info, before, is_newest=not later)
        if choice is None or choice.stays:
            stay.add(info.run)
        if choice is not None and info.time < before:
            chosen.append(choice)
    return chosen[::-1]


def _look(store: Store, info: RunInfo, before: int, *, is_newest: bool) -> Choice | None:
    """What is to become of a run, by itself; None where it is not that old."""
    run, at = info.run, store_option(store)
    if store.live(run):
        return Choice(info, stays="in use")
    if info.status is None or (is_newest and info.mode in _WORKS and info.status not in _DONE):
        why = f"{info.status or 'unfinished'}: the next session of its job resumes it"
        return Choice(info, stays=why, helps=f"rollcage abandon {run}{at}")
    if info.count is None:
        why = "only its own lines attest that it is whole"
        return Choice(info, stays=why)
    try:
        trace = store.read(run)
        check_attested(trace)
        last = check_events(trace.data, trace.where)[-1]
        if last["time"] >= before:
            return None
        unknown = standing(lineage_of(store, read_run(trace))).unknown if is_newest else []
    except RunNotFound as error:
        return Choice(info, stays=str(error))
    except RollcageError as error:
        return Choice(info, stays=str(error), helps=f"rollcage verify {run}{at}")
    lines, size = trace.data.count(b"\n"), len(trace.data)
    for effect in unknown:
        helps = resolve_commands(effect, at)
        return Choice(info, lines, size, f"{effect} has an unknown outcome", helps)
    return Choice(info, lines, size)


def prune_run(store: Store, run: str, *, by: str, time: int, keep_skeleton: bool) -> None:
    """Remove a run's trace and approvals, and leave its skeleton, if that is to be kept."""
    trace = store.read(run)
    check_attested(trace)
    skeleton = _skeleton(store, trace) if keep_skeleton else b""
    asked = {orjson.loads(line)["id"] for line in trace.data.splitlines() if _ASKED in line[:40]}
    keys = [key for key in store.keys(_APPROVALS) if key.split(".")[0].split("-")[0] in asked]
    store.prune(run, by=by, time=time, skeleton=skeleton)
    for part in _PARTS:
        for key in keys:
            if key.endswith(f".{part}"):
                store.drop(_APPROVALS, key)


def _skeleton(store: Store, trace: RunTrace) -> bytes:
    """The lines of a trace without any value, in a chain of their own."""
    events = check_events(trace.data, trace.where, restore=False)
    taken_out = Redaction((), values=False, key=store.secret_key(), get_blob=store.get_blob)
    chosen = [taken_out(event) for event in events]
    chosen[0]["redacted"] = True
    return b"".join(sealed(chosen))


def drop_unused(store: Store) -> int | None:
    """Remove the large values and the outlines of plans that no trace names; how many values.

    None, and nothing is removed, where a run is in use: its writer may count on what is
    there, and has not noted that yet.
    """
    blobs, plans = set(store.blobs()), set(store.keys(_PLANS))
    if not blobs and not plans:
        return 0
    with store.opening():  # nobody begins a run meanwhile
        infos = store.runs()
        if any(store.live(info.run) for info in infos if info.pruned is None):
            return None
        named = _named_in(_lines_of(store, infos))
        waiting = blobs & named
        while waiting:  # what is in one may name others
            inside = _named_in(_held(store, waiting)) & blobs
            waiting = inside - named
            named |= inside
        for digest in blobs - named:
            store.drop_blob(digest)
        for digest in plans - named:
            store.drop(_PLANS, digest)
    return len(blobs - named)


def _lines_of(store: Store, infos: Sequence[RunInfo]) -> Iterable[bytes]:
    for info in infos:
        if info.pruned is None:
            trace = store.read(info.run)
            yield trace.data + trace.torn


def _held(store: Store, digests: Iterable[str]) -> Iterable[bytes]:
    for digest in digests:
        try:
            yield store.get_blob(digest)
        except StoreError:  # damaged: it stays
            continue


def _named_in(parts: Iterable[bytes]) -> set[str]:
    """Whatever may be a digest: a trace that is damaged still holds what it names."""
    return {found.decode() for part in parts for found in _DIGEST.findall(part)}
