"""Tests of agents, as their authors write them, and what pytest says of them."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from rollcage_pytest.cassette import recording_at

pytest_plugins = ["pytester"]

TOOLS = """
import asyncio, os, socket
import pytest
from rollcage import Session, Verdict, compensate, tool
from rollcage_pytest import *

ran = []

@tool(effect="read")
def look_up(city: str) -> str:
    ran.append(city)
    return f"the news from {city}"

@tool(effect="write")
def send(text: str, to: str = "ann") -> str:
    ran.append(text)
    return "sent"
"""
AGENT = """
def test_agent(cassette):
    with cassette.session():
        send(look_up("Lima"))
"""


class Suite:
    """A folder with tests in it, run by pytest."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.cassettes = pytester.path / "cassettes" / "test_it"
        loops = "asyncio_default_fixture_loop_scope = function"
        pytester.makeini(f"[pytest]\nasyncio_mode = auto\n{loops}")

    def write(self, text: str) -> None:
        tests = TOOLS + textwrap.dedent(text)
        (self.pytester.path / "test_it.py").write_text(tests, encoding="utf-8")

    def run(self, *options: str, passed: int = 0, failed: int = 0, errors: int = 0) -> str:
        result = self.pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q", *options)
        result.assert_outcomes(passed=passed, failed=failed, errors=errors)
        return re.sub(r"\s+", " ", result.stdout.str() + result.stderr.str())

    def recordings(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.cassettes)): path.read_bytes()
            for path in sorted(self.cassettes.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.delenv("CI", raising=False)
    return Suite(pytester)


def test_a_run_is_recorded_once_then_replayed(suite: Suite) -> None:
    suite.write(AGENT + "    assert ran == ['Lima', 'the news from Lima']")
    suite.run(passed=1)
    (once,) = suite.recordings().items()
    assert once[0] == "test_agent.jsonl"
    suite.write(AGENT + "    assert ran == [] and not socket.socket.connect.__qualname__[0] == 'M'")
    suite.run(passed=1)
    suite.run("--rollcage-record=none", passed=1)
    suite.run("--rollcage-record=new", passed=1)
    assert [*suite.recordings().items()] == [once]


def test_recording_again_is_the_same_byte_by_byte(suite: Suite) -> None:
    suite.write(
        AGENT
        + """
class TestMore:
    @pytest.mark.parametrize("city", ["Lima", "a/b", "é" * 200])
    def test_cities(self, cassette, city):
        with cassette.session() as session, session.turn():
            send(city)
            with session.branch("left"):
                look_up(city * 20_000)  # a large value

async def test_async(cassette):
    @tool(effect="read")
    async def wait(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async with cassette.session() as session:
        await asyncio.gather(wait(1), wait(2))
        assert await session.acall(look_up, city="Lima") == "the news from Lima"
"""
    )
    suite.run(passed=5)
    first = suite.recordings()
    traces = [name for name in first if name.endswith(".jsonl")]
    assert len(traces) == 5
    assert len(first) > 5  # blobs
    assert "TestMore.test_cities[Lima].jsonl" in traces
    suite.run("--rollcage-record=rewrite", passed=5)
    assert suite.recordings() == first
    suite.run("--rollcage-record=none", passed=5)
    suite.pytester.path.joinpath("test_it.py").rename(suite.pytester.path / "test_it.tmp")
    elsewhere = suite.pytester.path / "below" / "test_it.py"  # from another folder, moved whole
    elsewhere.parent.mkdir()
    suite.pytester.path.joinpath("test_it.tmp").rename(elsewhere)
    suite.run("--rollcage-record=once", "below", passed=5)
    moved = elsewhere.parent / "cassettes" / "test_it" / "test_agent.jsonl"
    assert moved.read_bytes() == first["test_agent.jsonl"]


def test_another_argument_fails_and_says_which_and_what_to_do(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    before = suite.recordings()
    suite.write(AGENT.replace("look_up", "str.upper").replace('"Lima"', '"the news"'))
    said = suite.run(failed=1)
    assert "no recorded step for send" in said
    assert "nearest recorded call is step 2 (send)" in said
    assert "text" in said
    assert "pytest test_it.py::test_agent --rollcage-record=rewrite" in said
    assert suite.recordings() == before
    suite.run("--rollcage-record=rewrite", passed=1)
    assert suite.recordings() != before
    suite.run(passed=1)


def test_a_miss_that_the_agent_swallows_fails_all_the_same(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    suite.write(
        """
        def test_agent(cassette):
            with pytest.raises(Exception), cassette.session():
                try:
                    send("something else")
                except Exception:
                    pass
        """
    )
    said = suite.run(failed=1)
    assert "no recorded step for send" in said
    assert "--rollcage-record=rewrite" in said


@pytest.mark.parametrize("strict", [True, False])
def test_what_was_not_asked_for_any_more(suite: Suite, *, strict: bool) -> None:
    mark = f"@pytest.mark.rollcage(strict={strict})"
    suite.write(
        f"""
        {mark}
        def test_read(cassette):
            with cassette.session():
                look_up("Lima")
                look_up("Oslo")

        {mark}
        def test_write(cassette):
            with cassette.session():
                look_up("Lima")
                send("all")
        """
    )
    suite.run(passed=2)
    suite.write(
        f"""
        {mark}
        def test_read(cassette):
            with cassette.session():
                look_up("Lima")

        {mark}
        def test_write(cassette):
            with cassette.session():
                look_up("Lima")
        """
    )
    said = suite.run(failed=1 + strict, passed=1 - strict)
    assert 'step 2: send(text="all", to="ann")' in said
    assert ('step 2: look_up(city="Oslo")' in said) == strict
    assert "not asked for any more" in said


def test_new_adds_what_is_not_recorded_and_runs_nothing_else(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    more = AGENT + "        send('more')\n    assert ran == ['more']\n    assert cassette.recorded"
    suite.write(more)
    suite.run("--rollcage-record=new", passed=1)
    both = suite.recordings()
    suite.write(AGENT + "        send('more')\n    assert ran == []")
    suite.run("--rollcage-record=none", passed=1)
    suite.run("--rollcage-record=new", passed=1)
    assert suite.recordings() == both
    suite.write(AGENT)
    suite.run("--rollcage-record=none", failed=1)
    suite.run("--rollcage-record=new", passed=1)  # a call less is taken, too
    suite.run("--rollcage-record=none", passed=1)


def test_none_needs_a_recording_and_is_what_ci_gets(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.write(AGENT)
    monkeypatch.setenv("CI", "true")
    said = suite.run(failed=1)
    assert "There is no recording" in said
    assert "Record it: pytest test_it.py::test_agent --rollcage-record=once" in said
    assert not suite.cassettes.exists()
    suite.run("--rollcage-record=once", passed=1)
    suite.run(passed=1)


def test_a_test_that_fails_records_nothing(suite: Suite) -> None:
    suite.write(AGENT + "    assert False")
    suite.run(failed=1)
    assert not suite.cassettes.exists()


def test_live_runs_and_keeps_and_compares_nothing(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    before = suite.recordings()
    suite.write(AGENT.replace("Lima", "Oslo") + "    assert ran[0] == 'Oslo'")
    suite.run("--rollcage-live", passed=1)
    assert suite.recordings() == before


REFUSED = "while a recording is replayed, the network is refused"


@pytest.mark.parametrize(
    "use",
    [
        "socket.create_connection(('127.0.0.1', 9))",
        "socket.getaddrinfo('example.org', 80)",
        "asyncio.run(asyncio.open_connection('127.0.0.1', 9))",
        "with socket.socket(type=socket.SOCK_DGRAM) as s: s.sendto(b'', ('127.0.0.1', 9))",
    ],
)
def test_a_replay_reaches_no_network(suite: Suite, use: str) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    swallowing = f"""
        try:
            {use}
        except Exception:
            pass
"""
    suite.write(AGENT + swallowing)
    assert REFUSED in suite.run(failed=1)


def test_a_thread_that_reaches_for_the_network_fails_the_test(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    in_a_thread = """
        import threading

        def call():
            with pytest.raises(BaseException), socket.socket() as sock:
                sock.connect(("127.0.0.1", 9))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
"""
    suite.write(AGENT + in_a_thread)
    assert REFUSED in suite.run(failed=1)


def test_a_credential_is_not_recorded(suite: Suite) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    suite.write(
        f"""
        def test_argument(cassette):
            with cassette.session():
                send("Bearer {token}")

        def test_result(cassette):
            @tool(effect="read")
            def login() -> dict[str, str]:
                return {{"password": "hunter2hunter2"}}

            with cassette.session():
                login()

        def test_declared(cassette):
            @tool(effect="read", secret=["token"])
            def declared(token: str) -> str:
                return "in"

            with cassette.session():
                declared("{token}")
        """
    )
    said = suite.run(failed=2, passed=1)
    assert "Credentials would get into the recording" in said
    assert "step 1 (send) args $.text" in said
    assert token not in b"".join(suite.recordings().values()).decode()
    assert [*suite.recordings()] == ["test_declared.jsonl"]
    assert "hunter2hunter2" not in "".join(
        path.read_text(errors="replace") for path in suite.pytester.path.rglob("*.jsonl")
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@pytest.mark.rolcage\ndef test_it(cassette): pass", "meant to be 'rollcage'"),
        ("@pytest.mark.rollcage\ndef test_it(): pass", "it would run live"),
        ("@pytest.mark.rollcage(stict=True)\ndef test_it(cassette): pass", "takes strict= only"),
        ("@pytest.mark.rollcage(True)\ndef test_it(cassette): pass", "takes strict= only"),
    ],
)
def test_marks_that_would_do_nothing_are_refused(suite: Suite, text: str, said: str) -> None:
    suite.write(text)
    options = ("-p", "no:cacheprovider", "-q", "-Wignore::pytest.PytestUnknownMarkWarning")
    result = suite.pytester.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "opened no session"),
        ("cassette.session()", "opened no session"),
        ("cassette.session().__enter__()", "was not left"),
        ("cassette.session(store='x')", "store= is for the cassette to set"),
        ("[cassette.session() for _ in range(2)]", "a cassette holds one run"),
        ("cassette.run", "no session was opened"),
    ],
)
def test_a_cassette_is_used_once_and_whole(suite: Suite, body: str, said: str) -> None:
    suite.write(f"def test_agent(cassette):\n    {body}")
    assert said in suite.run(failed=1)
    assert not suite.cassettes.exists()


def test_many_workers_write_the_same(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write(
        """
        @pytest.mark.parametrize("n", range(4))
        def test_one(cassette, n):
            with cassette.session():
                send("x" * 70_000)
                send(str(n))
        """
    )
    suite.run(passed=4)
    alone = suite.recordings()
    suite.pytester.makeini("[pytest]")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # workers start sooner
    plugins = ("-p", "xdist", "-p", "rollcage_pytest.plugin")
    suite.run(*plugins, "-n", "2", "--rollcage-record=rewrite", passed=4)
    assert suite.recordings() == alone


def test_undo_approvals_nested_calls_streams_and_errors_are_replayed(suite: Suite) -> None:
    suite.write(
        """
        from rollcage import Approval, Blocked

        shelf = []

        @tool
        def take(thing: str) -> None: shelf.remove(thing)

        @tool(undo=lambda args: [compensate("take", **args)])
        def put(thing: str) -> None: shelf.append(thing)

        @tool(effect="scope")
        def both(thing: str) -> str:
            return look_up(thing) + send(thing)

        @tool(effect="read")
        def chunks():
            yield from "abc"

        @tool(effect="read")
        def fail() -> None:
            raise LookupError("nothing there")

        def rule(step):
            if step.name == "take" and step.args["thing"] == "x":
                return Verdict.deny("no")
            return Verdict.ask("sure?") if step.name == "send" else None

        def test_agent(cassette):
            options = {"gate": [rule], "approver": lambda request: Approval(True, by="ann")}
            with cassette.session(**options) as session:
                assert both("Lima") == "the news from Limasent"
                assert list(chunks()) == ["a", "b", "c"]
                with pytest.raises(LookupError, match="nothing there"):
                    fail()
                with pytest.raises(Blocked):
                    take("x")
                with pytest.raises(ValueError), session.transaction():
                    put("a")
                    raise ValueError
                put("b")
        """
    )
    suite.run(passed=1)
    first = suite.recordings()
    suite.run("--rollcage-record=none", passed=1)
    suite.run("--rollcage-record=rewrite", passed=1)
    assert suite.recordings() == first


def test_a_recording_is_a_trace_as_any_other(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    read: Any = recording_at(suite.cassettes / "test_agent.jsonl")
    assert [step.name for step in read.steps] == ["look_up", "send"]
    assert read.status == "ok"
    assert Path(suite.cassettes).name == "test_it"


FORKED = """
from pathlib import Path
from rollcage.errors import ForkEnded
from rollcage import Session
from rollcage_fork import Fork

RECORDING = Path(__file__).parent / "cassettes" / "test_it" / "test_agent.jsonl"

def test_what_if(tmp_path):
    change = {"outcome": {"status": "ok", "value": "no news"}}
    session = Session("test_agent", store=tmp_path, stages=[Fork(str(RECORDING), 1, change)])
    with pytest.raises(ForkEnded, match="no news.*would be written"), session:
        send(look_up("Lima"))
    assert ran == []
"""


def test_a_recording_is_forked_in_a_test(suite: Suite) -> None:
    suite.write(AGENT)
    suite.run(passed=1)
    recorded = suite.recordings()
    suite.write(AGENT + FORKED)
    suite.run(passed=2)
    assert suite.recordings() == recorded


@pytest.mark.parametrize("record", ["once", "new", "rewrite"])
def test_a_fork_is_never_recorded(
    suite: Suite, record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = AGENT.replace("session()", "session(stages=[Fork('fork.json')])")
    suite.write(f"from rollcage_fork import Fork\n{given}")
    assert "a fork can't be recorded: give it a session of its own" in suite.run(failed=1)
    suite.write(AGENT)
    suite.run(passed=1)
    recorded = suite.recordings()
    fork = {"store": str(suite.cassettes), "run": str(suite.cassettes / "test_agent.jsonl")}
    (suite.pytester.path / "fork.json").write_text(json.dumps({**fork, "at": 1, "result": "none"}))
    monkeypatch.setenv("ROLLCAGE_STAGE", "fork:fork.json")
    if record == "once":
        suite.run(passed=1)  # a replay offline is none
    else:
        assert "unset ROLLCAGE_STAGE" in suite.run(f"--rollcage-record={record}", failed=1)
    assert suite.recordings() == recorded
