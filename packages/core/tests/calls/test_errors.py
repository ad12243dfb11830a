"""What a tool raises comes back: as itself live, and by the rule of the trace in replay."""

import errno
from collections.abc import Callable
from typing import Any

import pytest
from rollcage import Halt, ReplayedError, Session, Store, UnknownOutcome, tool

Events = Callable[[str], list[dict[str, Any]]]


class Refused(Exception):
    """An error of the tool's own."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what, code)
        self.what = what
        self.code = code


class Picky(Exception):
    """An error whose constructor takes other arguments than it keeps."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "more")


class Mute(Exception):
    """An error with a broken text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raiser:
    """A tool that raises what it is given, with a call behind it that makes it an old failure."""

    def __init__(self, store: Store, error: BaseException, **declared: Any) -> None:
        self.store = store
        self.error = error
        self.ran = 0
        self.fails = tool(effect="write", **declared)(self.fail)
        self.goes_on = tool(effect="write")(self.go_on)

    def fail(self) -> None:
        self.ran += 1
        raise self.error

    def go_on(self) -> None:
        """The agent went on after the failure."""

    def run(self, **how: Any) -> BaseException:
        with Session("job", store=self.store, **how):
            with pytest.raises(type(self.error) if not how else Exception) as caught:
                self.fails()
            self.goes_on()
        return caught.value

    def twice(self) -> Exception:
        """What it raises live (itself), and then in replay."""
        assert self.run() is self.error
        replayed = self.run(replay="offline")
        assert self.ran == 1
        assert isinstance(replayed, Exception)
        return replayed


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such thing"),
        KeyError("key"),
        ZeroDivisionError(),
        RuntimeError("one", 2, (3,), {"four": b"5"}),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        AssertionError("Zoë"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        NotImplementedError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_builtin_comes_back_as_itself(store: Store, error: Exception) -> None:
    replayed = Raiser(store, error).twice()
    assert type(replayed) is type(error)
    assert replayed.args == error.args
    assert str(replayed) == str(error)


def test_an_os_error_keeps_its_file(store: Store) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file", "a.txt", None, "b.txt")
    replayed = Raiser(store, error).twice()
    assert isinstance(replayed, FileNotFoundError)
    assert (replayed.errno, replayed.filename, replayed.filename2) == (2, "a.txt", "b.txt")
    assert str(replayed) == str(error)


def test_an_os_error_raised_by_the_system_comes_back_equal(store: Store) -> None:
    @tool(effect="write")
    def missing() -> None:
        open("/nonexistent/file")  # noqa: PTH123, SIM115 - it raises

    def run(**how: Any) -> tuple[str, int | None, str]:
        with Session("job", store=store, **how), pytest.raises(FileNotFoundError) as caught:
            missing()
        return str(caught.value), caught.value.errno, caught.value.filename

    assert run(replay="offline" if store.runs() else "auto") == run(replay="offline")


def test_a_declared_type_comes_back_as_itself(store: Store) -> None:
    replayed = Raiser(store, Refused("too much", 7), raises=[Refused]).twice()
    assert isinstance(replayed, Refused)
    assert (replayed.what, replayed.code) == ("too much", 7)


def test_a_declared_type_comes_back_though_its_constructor_wants_else(store: Store) -> None:
    replayed = Raiser(store, Picky("too much"), raises=[Picky]).twice()
    assert isinstance(replayed, Picky)
    assert replayed.args == ("too much", "more")


def test_any_other_type_comes_back_by_its_name(store: Store) -> None:
    replayed = Raiser(store, Picky("too much")).twice()
    assert isinstance(replayed, ReplayedError)
    assert replayed.type_name == f"{__name__}.Picky"
    assert replayed.message == "('too much', 'more')"


def test_notes_come_back_and_causes_stay_live(store: Store) -> None:
    error = ValueError("no")
    error.add_note("tried twice")
    error.add_note("Zoë \ud800")
    error.__cause__ = KeyError("inner")
    assert Raiser(store, error).run().__cause__ is error.__cause__
    replayed = Raiser(store, error).run(replay="offline")
    assert replayed.__notes__ == ["tried twice", "Zoë \ud800"]


def test_an_error_with_a_broken_text_hides_nothing(store: Store) -> None:
    replayed = Raiser(store, Mute()).twice()
    assert isinstance(replayed, ReplayedError)
    assert replayed.type_name == f"{__name__}.Mute"


def test_an_error_holding_what_has_no_encoding_keeps_its_text(store: Store) -> None:
    error = ValueError(object)
    replayed = Raiser(store, error).twice()
    assert type(replayed) is ValueError
    assert str(replayed) == str(error)


def test_a_group_comes_back_by_its_name(store: Store) -> None:
    replayed = Raiser(store, ExceptionGroup("several", [ValueError("one")])).twice()
    assert isinstance(replayed, ReplayedError)
    assert replayed.message == "several (1 sub-exception)"


def test_a_trace_can_name_no_type_to_import(store: Store) -> None:
    """What is no builtin exception and is not declared stays data, whatever it is called."""
    error = type("system", (Exception,), {"__module__": "os"})("true")
    replayed = Raiser(store, error).twice()
    assert isinstance(replayed, ReplayedError)
    assert replayed.type_name == "os.system"


async def test_an_async_tool_raises_as_a_sync_one(store: Store) -> None:
    error = Refused("too much", 7)

    @tool(effect="write", raises=[Refused])
    async def fails() -> None:
        raise error

    async with Session("job", store=store):
        with pytest.raises(Refused) as live:
            await fails()
    assert live.value is error
    async with Session("job", store=store, replay="offline"):
        with pytest.raises(Refused) as replayed:
            await fails()
    assert replayed.value is not error
    assert replayed.value.args == ("too much", 7)


def test_an_exception_that_ends_the_session_is_in_its_trace(store: Store, events: Events) -> None:
    with pytest.raises(Refused), Session("job", store=store) as session:
        raise Refused("too much", 7)
    last = events(session.run_id)[-1]
    assert last["status"] == "error"
    assert last["error"] == {"type": f"{__name__}.Refused", "message": "('too much', 7)"}


@pytest.mark.parametrize("error", [TimeoutError("no answer"), Halt("mine")])
def test_the_halt_for_a_lost_answer_names_its_cause(store: Store, error: Exception) -> None:
    @tool(name="errors.lost")
    def lost() -> None:
        raise error

    with pytest.raises(UnknownOutcome) as halt, Session("job", store=store) as session:
        with pytest.raises(type(error)):
            lost()
        assert session.halted is not None  # the agent goes on
    assert halt.value.__cause__ is (None if isinstance(error, Halt) else error)


def test_a_read_that_fails_may_have_changed_nothing(store: Store) -> None:
    @tool(name="errors.looks", effect="read")
    def looks() -> None:
        raise TimeoutError("no answer")

    with Session("job", store=store) as session, pytest.raises(TimeoutError):
        looks()
    assert session.halted is None
    with Session("job", store=store, replay="offline"), pytest.raises(TimeoutError):
        looks()


def test_calls_behind_a_scope_that_the_programs_own_halt_left_come_one_by_one(
    store: Store, events: Events
) -> None:
    @tool(name="errors.halting", effect="scope")
    def halting() -> None:
        raise Halt("mine")

    @tool(name="errors.write")
    def write(number: int) -> int:
        return number

    with Session("job", store=store) as session:
        with pytest.raises(Halt, match="mine"):
            halting()
        assert [write(1), write(2)] == [1, 2]
    began = [each for each in events(session.run_id) if each["event"] == "step"]
    assert [(each["turn"], "during" in each) for each in began] == [
        (1, False), (2, False), (3, False),
    ]  # fmt: skip
