"""Undo compares the states as they are, though a log shows those without the secrets in them."""

import asyncio
import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from rollcage import (
    CaptureFailed,
    Secrets,
    Session,
    UndoReport,
    UnknownOutcome,
    aundo_run,
    compensate,
    open_store,
    plan_undo,
    tool,
    undo_run,
)
from rollcage.fingerprint.identity import jcs

SECRET, OTHER = "correct-horse-battery", "staple-staple-staple"

users: dict[str, Any] = {}
notes: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_is_there() -> Iterator[None]:
    users.clear()
    notes.clear()
    yield
    users.clear()


@tool(name="concealed.restore", idempotent=True)
def restore(user: str, kept: str) -> None:
    """Put back what is kept under a name; the secret is in the keeping of the tool itself."""
    if notes[kept] is None:
        users.pop(user, None)
    else:
        users[user] = notes[kept]


def keep(user: str) -> str:
    kept = f"{user}-{len(notes)}"
    notes[kept] = users.get(user)
    return kept


def look(args: dict[str, Any]) -> dict[str, Any]:
    return {f"user:{args['user']}": users.get(args["user"])}


def plan(args: dict[str, Any]) -> Any:
    return [compensate(restore, user=args["user"], kept=keep(args["user"]))]


@tool(name="concealed.enroll", secret="password", observe=look, undo=plan, raises=(ValueError,))
def enroll(user: str, password: str, form: str = "field") -> None:
    if form == "refused":
        raise ValueError("no")
    users[user] = written(form, user, password)


@tool(name="concealed.typed", observe=look, undo=plan)
def typed(user: str, password: SecretStr, form: str = "field") -> None:
    users[user] = written(form, user, password.get_secret_value())


@tool(name="concealed.rename", observe=look, undo=plan)
def rename(user: str, to: str) -> None:
    users[user] = [to, users.get(user)]


def written(form: str, user: str, password: str) -> Any:
    return {
        "field": {"name": user, "password": password},
        "text": f"{user}:{password}",
        "name": {password: user},
        "deep": {"all": [{"of": f"{password}!"}], "n": 1},
        "large": {"name": user, "all": f"{password} " * 9000},
        "bytes": {"raw": password.encode(), "sealed": SecretStr(password)},
    }[form]


FORMS = ("field", "text", "name", "deep", "large", "bytes")


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[None]:
    yield
    held = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert held
    for secret in (SECRET, OTHER):
        assert secret.encode() not in held
        for form in FORMS:
            state = written(form, "ann", secret)
            fields = list(state.values()) if isinstance(state, dict) else []
            for each in (state, secret, *fields):
                if secret in repr(each) and form != "bytes":
                    assert sha256(jcs(each)).hexdigest().encode() not in held, "it can be guessed"


def crashed(root: Path, job: Callable[[Session], None], **how: Any) -> str:
    with pytest.raises(InterruptedError), Session("job", store=root, **how) as session:
        job(session)
        raise InterruptedError
    return session.run_id


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("work", [enroll, typed])
@pytest.mark.usefixtures("clean")
def test_a_state_that_quotes_a_secret_is_undone(tmp_path: Path, work: Any, form: str) -> None:
    def job(_: Session) -> None:
        work("ann", SECRET, form)
        rename("ann", "anna")
        work("ann", OTHER, form)

    run = crashed(tmp_path, job)
    assert {each.state for each in plan_undo(tmp_path, run).steps} == {"reversible"}
    report = undo_run(tmp_path, run)
    assert [each.status for each in report.steps] == ["verified"] * 3
    assert users == {}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("clean")
def test_a_change_of_the_secret_by_somebody_else_is_a_conflict(tmp_path: Path, form: str) -> None:
    run = crashed(tmp_path, lambda _: enroll("ann", SECRET, form))
    users["ann"] = written(form, "ann", OTHER)
    report = undo_run(tmp_path, run)
    assert [each.status for each in report.steps] == ["conflict"]
    if form in ("field", "deep", "large"):
        changed = {"field": "password", "deep": "all", "large": "all"}[form]
        assert report.steps[0].differs == {"user:ann": [changed]}
    assert users["ann"] == written(form, "ann", OTHER)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("clean")
def test_a_block_and_a_session_undo_it_themselves(tmp_path: Path, form: str) -> None:
    with Session("job", store=tmp_path, stages=[Secrets()]) as session:
        with pytest.raises(InterruptedError), session.transaction():
            enroll("ann", SECRET, form)
            raise InterruptedError
        assert users == {}
        enroll("bob", OTHER, form)
        assert session.undo().complete
    assert users == {}


@pytest.mark.usefixtures("clean")
def test_an_error_that_left_it_as_it_was_is_clean(tmp_path: Path) -> None:
    users["ann"] = written("field", "ann", SECRET)

    def job(_: Session) -> None:
        with pytest.raises(ValueError, match="no"):
            enroll("ann", SECRET, "refused")

    run = crashed(tmp_path, job)
    assert undo_run(tmp_path, run).complete
    assert users["ann"] == written("field", "ann", SECRET)


@pytest.mark.usefixtures("clean")
def test_an_unknown_write_that_left_it_did_not_happen(tmp_path: Path) -> None:
    fails = [True]

    @tool(secret="password", observe=look, undo=plan)
    def change(user: str, password: str) -> None:
        if fails.pop():
            raise TimeoutError
        users[user] = written("text", user, password)

    users["ann"] = written("text", "ann", SECRET)
    with pytest.raises(Exception, match="nobody knows"), Session("job", store=tmp_path):
        change("ann", SECRET)
    fails.append(False)
    with Session("job", store=tmp_path):
        change("ann", SECRET)


@pytest.mark.usefixtures("clean")
def test_a_resource_that_is_named_by_a_secret_is_refused(tmp_path: Path) -> None:
    @tool(secret="password", observe=lambda args: {f"of {args['password']}": 1})
    def change(password: str) -> None:
        users["ran"] = password

    with (
        Session("job", store=tmp_path),
        pytest.raises(CaptureFailed, match="names a resource by a text that quotes a secret"),
    ):
        change(SECRET)
    assert users == {}


@pytest.mark.usefixtures("clean")
def test_the_key_of_another_store_is_a_conflict(tmp_path: Path) -> None:
    run = crashed(tmp_path, lambda _: enroll("ann", SECRET))
    (tmp_path / "docs" / "keys" / "seal").unlink()
    report = undo_run(tmp_path, run)
    assert [each.status for each in report.steps] == ["conflict"]
    assert users["ann"] == written("field", "ann", SECRET)


def test_an_attempt_that_is_not_told_the_secret_compares_it_too(tmp_path: Path) -> None:
    crashed(tmp_path, lambda _: enroll("ann", SECRET))
    run = crashed(tmp_path, lambda _: rename("ann", "anna"), on_divergence="warn")
    report = undo_run(tmp_path, run)
    assert [each.status for each in report.steps] == ["verified"] * 2
    assert users == {}


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.usefixtures("clean")
def test_undo_tells_what_somebody_else_changed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - programs, not secrets

    def job(session: Session) -> None:
        for _ in range(chance.randint(1, 6)):
            user, secret = chance.choice(["ann", "bob"]), chance.choice([SECRET, OTHER])
            match chance.choice(["enroll", "typed", "rename", "block"]):
                case "enroll":
                    enroll(user, secret, chance.choice(FORMS))
                case "typed":
                    typed(user, SecretStr(secret), chance.choice(FORMS))
                case "rename":
                    rename(user, f"to {chance.randint(0, 3)}")
                case _:
                    with session.branch("agent"):
                        enroll(user, secret, chance.choice(FORMS))

    run = crashed(tmp_path, job, stages=[Secrets()] if chance.random() < 0.5 else [])
    changed = [user for user in users if chance.random() < 0.4]
    for user in changed:
        users[user] = written("text", user, "what is no secret")
    if chance.random() < 0.5:
        report = asyncio.run(aundo_run(tmp_path, run))
    else:
        report = undo_run(tmp_path, run)
    if changed:
        conflicts = [each for each in report.steps if each.status == "conflict"]
        assert conflicts
        assert {name for each in conflicts for name in each.differs} <= {
            f"user:{user}" for user in changed
        }
        assert all(users[user] == written("text", user, "what is no secret") for user in changed)
    else:
        assert all(each.status == "verified" for each in report.steps)
        assert users == {}


def raised(error: Exception, note: str = "") -> None:
    if note:
        error.add_note(note)
    raise error


class _OwnTextError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __str__(self) -> str:
        return self.text


def quoting(how: str, text: str) -> Any:
    match how:
        case "result":
            return f"it was {text}"
        case "error":
            raised(LookupError(text), text)
        case "file":
            raised(OSError(5, text, text))
        case "own text":
            raised(_OwnTextError(text))
        case "lost":
            raise RuntimeError(text) from TimeoutError(text)
        case _:
            raised(TypeError(*text))
    return None


@pytest.mark.parametrize("how", ["result", "error", "file", "letters", "own text", "lost"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.usefixtures("clean")
def test_an_undo_elsewhere_tells_nothing_that_quotes(
    tmp_path: Path, how: str, *, asynchronous: bool
) -> None:
    """The attempt that undoes was never told the secret, and meets it in the state."""

    def back(user: str) -> str:
        was = users.pop(user)
        return str(quoting(how, str(was)))

    async def aback(user: str) -> str:
        return back(user)

    undoing = tool(name=f"concealed.quoting-{how}-{asynchronous}")(aback if asynchronous else back)

    @tool(
        name="concealed.quoted",
        secret="password",
        observe=look,
        undo=lambda args: [compensate(undoing, user=args["user"])],
    )
    def quoted(user: str, password: str) -> None:
        users[user] = f"{user}: {password}"

    run = crashed(tmp_path, lambda _: quoted("ann", SECRET))

    def undone() -> UndoReport:
        return asyncio.run(aundo_run(tmp_path, run)) if asynchronous else undo_run(tmp_path, run)

    if how == "lost":  # nobody knows whether it happened
        with pytest.raises(UnknownOutcome) as unknown:
            undone()
        assert SECRET not in str(unknown.value)
        return
    report = undone()
    (step,) = report.steps
    assert step.status == ("verified" if how == "result" else "failed")
    assert SECRET not in repr(report)
    assert ("withheld" in step.reason) == (how != "result")
    assert users == {}
    if how == "result":
        last = [line for line in open_store(tmp_path).read(run) if b'"event":"outcome"' in line][-1]
        assert orjson.loads(last)["outcome"]["value"].startswith("withheld")
