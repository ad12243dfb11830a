"""Secrets never reach the disk, nor does anything that they could be guessed from."""

import base64
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pydantic
import pytest
from rollcage import ArgumentsInvalid, Session, Store, open_store, tool

SECRET = "hunter2-correct-horse"
PIN = "0042"


class Login(pydantic.BaseModel):
    """Arguments with a secret inside."""

    user: str
    password: pydantic.SecretStr


@tool(effect="write")
def typed(password: pydantic.SecretStr) -> None:
    assert password.get_secret_value() == SECRET


@tool(effect="write", secret="password")
def declared(password: str, pin: str = PIN) -> None:
    assert password == SECRET


@tool(effect="write", secret=["keys"])
def many(keys: dict[str, Any]) -> None:
    assert keys["main"][0] == SECRET


@tool(effect="write")
def inside(login: Login, more: list[pydantic.SecretBytes]) -> None:
    assert login.password.get_secret_value() == SECRET


@tool(effect="write")
def anywhere(value: Any) -> None:
    pass


@tool(effect="write")
def gives(user: str) -> pydantic.SecretStr:
    return pydantic.SecretStr(SECRET)


@tool(effect="write", secret="password")
def large(password: str) -> None:
    assert len(password) > 100_000


def call_all() -> None:
    secret = pydantic.SecretStr(SECRET)
    typed(password=secret)
    as_text: Any = SECRET
    typed(password=as_text)  # validated into one
    declared(password=SECRET, pin="1")
    many(keys={"main": [SECRET, {"deep": SECRET}]})
    login = Login(user="ann", password=secret)
    inside(login=login, more=[pydantic.SecretBytes(SECRET.encode())])
    anywhere(value={"login": login, "list": [secret]})
    gives(user="ann")
    large(password=SECRET * 10_000)


def on_disk(root: str) -> bytes:
    """Everything in a store."""
    return b"".join(
        p.read_bytes() for p in Path(root).rglob("*") if p.is_file() and p.name != "key"
    )


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_no_secret_reaches_the_disk(store: Store) -> None:
    with Session("job", store=store):
        call_all()
    written = on_disk(store.url)
    assert b"ann" in written
    raw = SECRET.encode()
    for form in (
        raw, raw.hex().encode(), base64.b64encode(raw), raw[::-1],
        sha256(raw).hexdigest().encode(), sha256(b'"%b"' % raw).hexdigest().encode(),
    ):  # fmt: skip
        assert form not in written


def test_a_short_secret_cannot_be_guessed_from_its_mark(store: Store, tmp_path: Path) -> None:
    """Each store has a key of its own: the same secret has another mark, and another key."""

    @tool(effect="write", secret="pin")
    def enter(pin: str) -> None:
        pass

    marks, keys = [], []
    other = open_store(tmp_path / "other" / "store")
    for each in (store, other):
        with Session("job", store=each) as session:
            enter(pin=PIN)
        started = orjson.loads(each.read(session.run_id)[2])
        marks.append(started["args"]["pin"])
        keys.append(started["key"])
    assert marks[0] != marks[1]
    assert keys[0] != keys[1]


def test_secrets_are_told_apart_in_replay(store: Store) -> None:
    """`SecretStr` shows asterisks; two passwords must not share a key."""
    ran = []

    @tool(effect="write")
    def log_in(password: pydantic.SecretStr) -> int:
        ran.append(password.get_secret_value())
        return len(ran)

    with Session("job", store=store), pytest.raises(KeyError):
        assert log_in(password=pydantic.SecretStr("one")) == 1
        assert log_in(password=pydantic.SecretStr("two")) == 2
        raise KeyError
    with Session("job", store=store, replay="offline") as again:
        assert log_in(password=pydantic.SecretStr("one")) == 1
        assert log_in(password=pydantic.SecretStr("two")) == 2
    assert again.stats.hits == 2
    assert ran == ["one", "two"]


def test_a_refused_secret_is_not_told_on(store: Store) -> None:
    @tool(effect="write", secret="password")
    def log_in(password: int) -> None:
        pass

    with (
        Session("job", store=store) as session,
        pytest.raises(ArgumentsInvalid, match="log_in") as caught,
    ):
        session.call(log_in, password=SECRET)
    assert SECRET not in str(caught.value)
    assert SECRET.encode() not in on_disk(store.url)


def test_a_raised_secret_is_not_recorded(store: Store) -> None:
    with Session("job", store=store), pytest.raises(ValueError, match="no"):

        @tool(effect="write")
        def log_in() -> None:
            raise ValueError("no", pydantic.SecretStr(SECRET))

        log_in()
    assert SECRET.encode() not in on_disk(store.url)
