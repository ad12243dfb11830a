"""Secrets: neither they nor an unkeyed hash of them reach the disk or a message."""

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
from rollcage import ArgumentsInvalid, Contract, ReplayMiss, Session, tool
from rollcage.store import JsonlStore
from rollcage.trace import TAG

CLEAR = "hunter2-the-clear-text"
OTHER = "hunter3-the-clear-text"


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


def by_type(password: pydantic.SecretStr) -> None: ...
def by_bytes(password: pydantic.SecretBytes) -> None: ...
def in_model(login: Login) -> None: ...
def in_list(logins: list[Login]) -> None: ...
def by_name(password: str, user: str = "ann") -> None: ...
def anything(password: Any) -> None: ...
def wrapped(password: pydantic.Secret[tuple[str, int]]) -> None: ...


Send = Callable[[str], dict[str, Any]]
WAYS: list[tuple[Any, dict[str, Any], Send]] = [
    (by_type, {}, lambda word: {"password": word}),
    (by_bytes, {}, lambda word: {"password": word.encode()}),
    (in_model, {}, lambda word: {"login": {"user": "ann", "password": word}}),
    (in_list, {}, lambda word: {"logins": [{"user": "ann", "password": word}]}),
    (by_name, {"secret": ["password"]}, lambda word: {"password": word}),
    (anything, {}, lambda word: {"password": pydantic.SecretStr(word)}),
    (anything, {"secret": ["password"]}, lambda word: {"password": [word, {"deep": word}]}),
    (anything, {"secret": ["password"]}, lambda word: {"password": {TAG: "secret", "value": word}}),
    (wrapped, {}, lambda word: {"password": (word, 1)}),
]
SCHEMA = {"properties": {"password": {"type": "string", "format": "password"}}}


def contracts() -> list[tuple[Contract, Send]]:
    made = [(Contract.of(function, **declared), send) for function, declared, send in WAYS]
    return [*made, (Contract(name="remote", parameters=SCHEMA), WAYS[0][2])]


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("contract", "send"), contracts())
def test_a_secret_argument_is_a_keyed_hash(contract: Contract, send: Send) -> None:
    def keyed(key: bytes, word: str) -> bytes:
        def seal(secret: str) -> str:
            return hmac.new(key, secret.encode(), "sha256").hexdigest()

        return contract.bind(send(word), seal).digest_input

    one = keyed(b"store", CLEAR)
    assert one == keyed(b"store", CLEAR)
    assert one != keyed(b"store", OTHER)
    assert one != keyed(b"other store", CLEAR)
    assert CLEAR.encode() not in one
    assert b'{"$rollcage":"secret","value":"' in one


@pytest.mark.parametrize(("contract", "send"), contracts())
def test_a_secret_never_reaches_the_disk_and_the_body_gets_it(
    tmp_path: Path, contract: Contract, send: Send
) -> None:
    got: list[Any] = []

    def body(**arguments: Any) -> str:
        got.append(arguments)
        return "done"

    with Session("job", store=tmp_path) as session:
        session.run(contract, send(CLEAR), body)
    assert CLEAR in revealed(got[0])
    assert CLEAR.encode() not in all_bytes(tmp_path)
    assert CLEAR.encode().hex().encode() not in all_bytes(tmp_path)
    with Session("job", store=tmp_path, replay="offline") as session:
        assert session.run(contract, send(CLEAR), body) == "done"
    with (
        pytest.raises(ReplayMiss) as caught,
        Session("job", store=tmp_path, replay="offline") as session,
    ):
        session.run(contract, send(OTHER), body)
    assert CLEAR not in str(caught.value)
    assert OTHER not in str(caught.value)
    assert OTHER.encode() not in all_bytes(tmp_path)
    assert len(got) == 1


def revealed(value: Any) -> str:
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, pydantic.BaseModel):
        value = value.__dict__
    if isinstance(value, dict):
        return " ".join(map(revealed, value.values()))
    if isinstance(value, list | tuple):
        return " ".join(map(revealed, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def test_stores_have_keys_of_their_own(tmp_path: Path) -> None:
    one, two = (JsonlStore(tmp_path / name) for name in "ab")
    for store in (one, two):
        with Session("job", store=store) as session:
            session.run(Contract.of(by_type), {"password": CLEAR}, by_type)
    assert one.secret_key() != two.secret_key()
    assert one.secret_key() == JsonlStore(tmp_path / "a").secret_key()


def refuse(value: Any) -> Any:
    raise ValueError(f"{value} is too weak")


def checked(password: Annotated[str, pydantic.AfterValidator(refuse)]) -> None: ...
def aliased(
    password: Annotated[str, pydantic.Field(alias="pw"), pydantic.AfterValidator(refuse)],
) -> None: ...
def mapped(password: dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (checked, {"password": CLEAR}, "checked: password: this secret is not valid"),
        (aliased, {"pw": CLEAR}, "aliased: pw: this secret is not valid"),
        (mapped, {"password": {CLEAR: CLEAR}}, "mapped: password: this secret is not valid"),
        (anything, {"password": {CLEAR: object()}}, "argument password: a secret that has no enc"),
        (by_name, {}, "by_name: password: Field required"),
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(
    tmp_path: Path, function: Any, arguments: dict[str, Any], said: str
) -> None:
    declared = tool(secret=["password"])(function)
    with (
        pytest.raises(ArgumentsInvalid, match=said) as caught,
        Session("job", store=tmp_path) as session,
    ):
        session.call(declared, **arguments)
    assert CLEAR not in str(caught.value)
    assert caught.value.__cause__ is None
    assert CLEAR.encode() not in all_bytes(tmp_path)


def test_pydantic_says_nothing_of_a_value_in_our_words() -> None:
    contract = Contract.of(in_model)
    with pytest.raises(ArgumentsInvalid) as caught:
        contract.bind({"login": {"user": [CLEAR], "password": {"a": CLEAR}}}, str)
    assert str(caught.value) == (
        "in_model: login.user: Input should be a valid string; "
        "login.password: Input should be a valid string"
    )
