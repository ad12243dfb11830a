"""The entries of an audit for one run: calls, approvals, undos and stops, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollcage_views.audit.entry import AuditEntry, Origin, RunHeading, policy_text
from rollcage_views.policies import denial_of
from rollcage_views.runs import AskedApproval, RefusedCall, Run, Step
from rollcage_views.screen import Screen
from rollcage_views.status import Effect, standing

__all__ = ["entries_of", "head_of"]


def head_of(seen: Run, screen: Screen) -> RunHeading:
    """Return the head of a run, before its entries."""
    started = seen.started
    return RunHeading(
        run=started["run"],
        job=screen.text(started["name"]),
        status=seen.status,
        mode=started["mode"],
        source=started.get("source") or "",
        time=started["time"],
        policy=policy_text(**_policy_of(started, screen)),
    )


def entries_of(run: Run, screen: Screen) -> list[AuditEntry]:
    """Return the entries of a run, in order of time.

    Args:
        run: the run.
        screen: removes credentials.
    """
    reader = _Entries(run, screen)
    found = [reader.call(row) for row in run.steps if row.kind != "branch"]
    found += map(reader.approval, run.approvals)
    found += reader.user_input()
    found += map(reader.loaded, run.policies)
    found += map(reader.undo, run.undos)
    found += map(reader.stop, run.stops)
    found += map(reader.refused, run.refused)
    if run.status == "partial":
        found += map(reader.orphan, standing(run).ahead)
    return sorted(found, key=lambda entry: entry.time)


def _policy_of(event: Mapping[str, Any], screen: Screen) -> dict[str, Any]:
    """Return the policy of an event."""
    policy: Mapping[str, Any] = event.get("policy") or {}
    mode = "refused" if event.get("error") else str(policy.get("mode", ""))
    return {
        "policy": screen.text(policy.get("name", "")),
        "policy_digest": str(policy.get("digest", "")),
        "policy_mode": mode,
    }


def _drift_text(row: Step) -> str:
    """Say how an output breaks its contract; empty if it does not."""
    broken: Mapping[str, Any] | None = (row.outcome or {}).get("drift")
    if broken is None:
        return ""
    reported = ", reported only" if broken.get("reported") else ""
    return f"{broken['code']} at {broken['path']}{reported}: {broken['reason']}"


class _Entries:
    """Makes the entries of one run."""

    def __init__(self, seen: Run, screen: Screen) -> None:
        self._started = seen.started
        self._ended = seen.last_time
        requests = [each.request for each in seen.approvals if each.request]
        self._requests = {each["id"]: each for each in requests}
        self._policies = [(each["time"], _policy_of(each, screen)) for each in seen.policies]
        self._first = _policy_of(seen.started, screen)
        self._rows = {row.step: row for row in seen.steps}
        self._screen = screen
        self._run: str = seen.started["run"]
        self._of_run: dict[str, Any] = {
            "run": self._run,
            "job": screen.text(seen.started["name"]),
            "actor": screen.text(seen.started.get("actor", "")),
        }

    def _policy(self, time: int) -> dict[str, Any]:
        """Return the policy in force at a time; one that could not be loaded denies all calls."""
        found = self._first
        for since, policy in self._policies:
            if since <= time:
                found = policy
        return found

    def user_input(self) -> Iterator[AuditEntry]:
        """Yield the user input, if the session has any."""
        texts: Any = self._started.get("user_input")
        if texts:
            yield AuditEntry(
                kind="user_input",
                time=self._started["time"],
                **self._of_run,
                **self._first,
                args=self._screen.words(texts),
                state="user_input",
            )

    def loaded(self, event: Mapping[str, Any]) -> AuditEntry:
        """Return the entry of a policy that was loaded, or failed to, in the middle of the run."""
        error: Mapping[str, Any] = event.get("error") or {}
        policy = _policy_of(event, self._screen)
        return AuditEntry(
            kind="policy",
            time=event["time"],
            **self._of_run,
            **policy,
            reason=self._screen.text(str(error.get("message", ""))),
            state=policy["policy_mode"],
        )

    def _before(self, approval: str | None, args: Mapping[str, Any]) -> str:
        """Return the requested arguments, if other ones ran."""
        asked = self._requests.get(approval or "", {}).get("args")
        return "" if asked is None or asked == args else self._screen.arguments(asked)

    def call(self, row: Step) -> AuditEntry:
        text, verdict = self._screen.text, row.verdict or {}
        shadow: Mapping[str, Any] = verdict.get("shadow") or {}
        first = None if row.origin is None else (str(row.origin[0]), int(row.origin[1]))
        undone = row.undone or ""
        return AuditEntry(
            kind="call",
            time=row.time,
            **self._of_run,
            step=row.step,
            agent=text(row.agent),
            tool=text(row.name),
            version=text(row.version),
            effect=row.simulated or row.effect,
            branch=text(row.branch),
            turn=row.turn,
            slot=row.slot,
            args=self._screen.arguments(row.args),
            args_before=self._before(row.approval, row.args),
            decision=str(verdict.get("decision", "allow")),
            rule=text(verdict.get("rule", "")),
            code=text(verdict.get("code", "")),
            reason=text(verdict.get("reason", "")),
            shadow=str(shadow.get("decision", "")),
            shadow_rule=text(shadow.get("rule", "")),
            shadow_code=text(shadow.get("code", "")),
            shadow_reason=text(shadow.get("reason", "")),
            **self._policy(row.time),
            approval=row.approval or "",
            by=text(row.decided_by or ""),
            state=row.state,
            outcome=self._screen.outcome(row.outcome or {}),
            drift=text(_drift_text(row)),
            duration=None if row.state == "hit" else row.duration,
            first_ran=first,
            undoes=None if row.undoes is None else (str(row.undoes[0]), int(row.undoes[1])),
            undone=undone,
            resolved_by=row.resolved_by or "",
            left_by=None if row.left_by is None else (self._run, row.left_by),
        )

    def refused(self, row: RefusedCall) -> AuditEntry:
        text, verdict = self._screen.text, denial_of(row)
        if verdict is not None:
            return self._denied(row, verdict)
        return AuditEntry(
            kind="refused",
            time=row.time,
            **self._of_run,
            agent=text(row.agent),
            tool=text(row.name),
            version=text(row.version),
            branch=text(row.branch),
            turn=row.turn or 0,
            slot=row.slot or 0,
            args=self._screen.arguments(row.args),
            code=text(row.code),
            reason=text(row.reason),
            state="refused",
        )

    def _denied(self, row: RefusedCall, verdict: Mapping[str, Any]) -> AuditEntry:
        """Return the entry of a call that a guard denied."""
        text = self._screen.text
        shadow: Mapping[str, Any] = verdict.get("shadow") or {}
        return AuditEntry(
            kind="call",
            time=row.time,
            **self._of_run,
            agent=text(row.agent),
            tool=text(row.name),
            version=text(row.version),
            branch=text(row.branch),
            turn=row.turn or 0,
            slot=row.slot or 0,
            args=self._screen.arguments(row.args),
            decision=str(verdict.get("decision", "deny")),
            rule=text(verdict.get("rule", "")),
            code=text(row.code),
            reason=text(row.reason),
            shadow=str(shadow.get("decision", "")),
            shadow_rule=text(shadow.get("rule", "")),
            shadow_code=text(shadow.get("code", "")),
            shadow_reason=text(shadow.get("reason", "")),
            **self._policy(row.time),
            state="blocked",
        )

    def orphan(self, effect: Effect) -> AuditEntry:
        return AuditEntry(
            kind="orphan",
            time=self._ended,
            **self._of_run,
            tool=self._screen.text(effect.name),
            effect="write",
            state="not_asked_for",
            first_ran=(effect.run, effect.step),
        )

    def approval(self, asked: AskedApproval) -> AuditEntry:
        """Return the entry of a request, with its decision."""
        text, request, decided = self._screen.text, asked.request, asked.decision
        verdict: Mapping[str, Any] = request.get("verdict") or {}
        answer: Mapping[str, Any] = decided or {}
        edited = answer.get("args")
        shadow: Mapping[str, Any] = verdict.get("shadow") or {}
        policy = self._policy((decided or request)["time"])
        return AuditEntry(
            kind="approval",
            time=(decided or request)["time"],
            **self._of_run,
            agent=text(request.get("agent", "")),
            tool=text(request.get("name", "")),
            version=text(request.get("version", "")),
            branch=text(request.get("branch", "")),
            turn=request.get("turn", 0),
            slot=request.get("slot", 0),
            args=self._screen.arguments(edited or request.get("args") or {}),
            args_before=self._screen.arguments(request.get("args") or {}) if edited else "",
            decision=str(verdict.get("decision", "ask")),
            rule=text(verdict.get("rule", "")),
            code=text(answer.get("code", "")),
            reason=text(answer.get("reason") or verdict.get("reason", "")),
            shadow=str(shadow.get("decision", "")),
            shadow_rule=text(shadow.get("rule", "")),
            shadow_code=text(shadow.get("code", "")),
            shadow_reason=text(shadow.get("reason", "")),
            **policy,
            approval=(decided or request)["id"],
            by=text(answer.get("by", "")),
            state=answer.get("decision") or "pending",
        )

    def undo(self, event: Mapping[str, Any]) -> AuditEntry:
        of = (str(event["of"][0]), int(event["of"][1]))
        row = self._row_of(of)
        return AuditEntry(
            kind="undo",
            time=event["time"],
            **self._of_run,
            agent=self._screen.text(row.agent) if row else "",
            tool=self._screen.text(row.name) if row else "",
            state=event["status"],
            reason=self._screen.text(event.get("reason", "")),
            undoes=of,
        )

    def _row_of(self, of: Origin) -> Step | None:
        """Return the undone step, if this run ran or replayed it."""
        if of[0] == self._run:
            return self._rows.get(of[1])
        return next((r for r in self._rows.values() if r.origin and (*r.origin[:2],) == of), None)

    def stop(self, event: Mapping[str, Any]) -> AuditEntry:
        return AuditEntry(
            kind="stop",
            time=event["time"],
            **self._of_run,
            by=self._screen.text(event["by"]),
            reason=self._screen.text(event["reason"]),
            state="stopped",
        )
