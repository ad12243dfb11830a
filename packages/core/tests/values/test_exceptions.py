"""Exceptions as data: builtins, declared types and our own come back as themselves."""

import errno
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Blocked, Diverged, ReplayedError
from rollcage.values.codec import TAG
from rollcage.values.exceptions import decode_exception, encode_exception


def seal(secret: str) -> str:
    return f"sealed:{len(secret)}"


def again(error: BaseException, *known: type[Exception]) -> Exception:
    """The exception after its way through a trace."""
    return decode_exception(orjson.loads(orjson.dumps(encode_exception(error, seal, known))), known)


class ApiError(Exception):
    """Its message is none of its parameters, as with most clients of services."""

    def __init__(self, status: int, *, body: bytes, retry: bool = False) -> None:
        super().__init__(f"the service said {status}")
        self.status = status
        self.body = body
        self.retry = retry
        self.connection = object()  # can't be recorded


class RateLimited(ApiError):
    pass


class Prefixed(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(f"prefixed {what}")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def missing_file() -> OSError:
    try:
        Path("/no/such/file").read_text()
    except OSError as error:
        return error
    raise AssertionError("it is there")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("a"),
        KeyError(("a", 1)),
        ZeroDivisionError(),
        FileNotFoundError(errno.ENOENT, "not here", "name"),
        missing_file(),
        OSError("only words"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        StopIteration({"a": (1, 2.0)}),
        SyntaxError("bad", ("file", 1, 2, "text", 1, 3)),
        RuntimeError("\ud800"),
        NotImplementedError,
    ],
)
def test_a_builtin_comes_back_as_itself(error: Any) -> None:
    error = error() if isinstance(error, type) else error
    back = again(error)
    assert type(back) is type(error)
    assert repr(back) == repr(error)
    assert str(back) == str(error)


def test_what_an_os_error_was_about_comes_back() -> None:
    back = again(missing_file())
    assert isinstance(back, FileNotFoundError)
    assert (back.errno, back.filename) == (errno.ENOENT, "/no/such/file")


def test_notes_come_back() -> None:
    error = ValueError("no")
    error.add_note("while counting")
    error.add_note("\udcff")
    assert again(error).__notes__ == ["while counting", "\udcff"]


def test_a_declared_type_comes_back_with_what_it_holds() -> None:
    back = again(ApiError(404, body=b"gone", retry=True), ApiError)
    assert type(back) is ApiError
    assert str(back) == "the service said 404"
    assert (back.status, back.body, back.retry) == (404, b"gone", True)
    assert not hasattr(back, "connection")


def test_a_subclass_of_a_declared_type_comes_back_as_itself() -> None:
    assert type(again(RateLimited(429, body=b""), ApiError)) is RateLimited


def test_a_constructor_that_would_change_the_words_is_not_used() -> None:
    assert str(again(Prefixed("words"), Prefixed)) == "prefixed words"


def test_an_undeclared_type_is_a_replayed_error_with_its_name_and_message() -> None:
    back = again(ApiError(404, body=b"gone"))
    assert type(back) is ReplayedError
    assert back.type_name == f"{__name__}.ApiError"
    assert back.message == "the service said 404"
    assert "state" not in encode_exception(ApiError(404, body=b"secret body"), seal)


def test_our_own_errors_come_back_as_themselves() -> None:
    back = again(Blocked("not on Sundays", rule="sundays", code="denied"))
    assert isinstance(back, Blocked)
    assert (back.reason, back.rule, back.verdict_code) == ("not on Sundays", "sundays", "denied")
    other = again(Diverged("left behind", (("run", 1),)))
    assert isinstance(other, Diverged)
    assert other.orphans == (("run", 1),)


def test_a_builtin_made_of_what_can_not_be_recorded_keeps_its_type_and_words() -> None:
    back = again(ValueError(object))
    assert type(back) is ValueError
    assert str(back) == "<class 'object'>"
    group = again(ExceptionGroup("many", [ValueError("one")]))
    assert type(group) is ReplayedError
    assert group.type_name == "ExceptionGroup"


def test_an_error_without_words_is_still_recorded() -> None:
    encoded = encode_exception(Mute("x"), seal)
    assert encoded["message"] == "<its text can't be shown>"
    assert type(decode_exception(encoded)) is ReplayedError


def test_a_type_that_can_not_be_made_again_is_a_replayed_error() -> None:
    import pydantic

    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    assert type(again(caught.value, pydantic.ValidationError)) is ReplayedError


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"type": 5, "message": "x"},
        {"type": "ValueError"},
        {"type": "ValueError", "message": []},
        {"type": "ValueError", "message": "x", "args": 5},
        {"type": "ValueError", "message": "x", "args": [{TAG: "no"}]},
        {"type": "ValueError", "message": "x", "notes": 5},
        {"type": "ValueError", "message": "x", "state": []},
    ],
)
def test_what_is_no_error_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any words
        decode_exception(data)


def test_a_trace_gives_an_error_no_inner_attributes() -> None:
    encoded = {
        "type": f"{__name__}.ApiError", "message": "x", "args": ["x"],
        "state": {"__class__": "y", "__notes__": 5, "__cause__": 1, "status": 3},
    }  # fmt: skip
    back = decode_exception(encoded, [ApiError])
    assert type(back) is ApiError
    assert vars(back) == {"status": 3}


# --- long ones -----------------------------------------------------------------------------------


def test_a_long_message_is_cut_and_says_so() -> None:
    text = "first " + "é" * 60_000 + " last"
    error = again(ValueError(text))
    assert type(error) is ValueError
    said = str(error)
    assert len(said.encode()) < 40_000
    assert said.startswith("first é")
    assert said.endswith("é last")
    assert sha256(text.encode()).hexdigest() in said
    assert encode_exception(ValueError(text), seal) == encode_exception(ValueError(text), seal)


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_a_message_of_64_kib_is_a_long_one(size: int) -> None:
    assert (str(again(ValueError("x" * size))) == "x" * size) == (size < 65_536)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 10**6),
        ValueError(*["x" * 60_000] * 20),
        OSError(errno.EIO, "x" * 10**6, "y" * 10**6),
        UnicodeDecodeError("utf-8", b"\xff" * 10**6, 0, 1, "x" * 10**6),
        KeyError("\N{SNOWMAN}" * 10**6),
        RuntimeError("\udcff" * 10**6),
        ApiError(500, body=b"x" * 10**6),
        Prefixed("x" * 10**6),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_exception_takes_much_room(error: Exception) -> None:
    for _ in range(50):
        error.add_note("z" * 60_000)
    encoded = orjson.dumps(encode_exception(error, seal, (ApiError, Prefixed)))
    assert len(encoded) < 300_000
    back = again(error, ApiError, Prefixed)
    assert isinstance(back, (type(error), ReplayedError))
    assert len(str(back)) < 300_000
    assert "the whole has the SHA-256" in back.__notes__[0]


def test_a_declared_error_whose_parts_are_too_large_keeps_its_message() -> None:
    error = ApiError(500, body=b"x" * 10**6)
    back = again(error, ApiError)
    assert isinstance(back, ApiError)
    assert (str(back), back.status) == ("the service said 500", 500)
    assert not hasattr(back, "body")


class Bulky(Exception):
    def __init__(self, *parts: bytes) -> None:
        super().__init__(*parts)

    def __str__(self) -> str:
        return f"{len(self.args)} parts"


def test_one_that_is_made_of_too_much_keeps_its_type() -> None:
    assert type(again(Bulky(b"x" * 10**6), Bulky)) is Bulky
