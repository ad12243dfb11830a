"""A run of one framework is replayed in another, and a value that can't be says so."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
from rollcage import ForkEnded, NotReplayable
from rollcage_conformance import Harness, Performance, Result, Scenario, Stage, ToolSpec
from rollcage_conformance.crossing import (
    CASES,
    Case,
    Crossing,
    Matrix,
    Party,
    decided,
    grouped,
)
from rollcage_conformance.reference import ReferenceHarness
from rollcage_conformance.stage import Played
from rollcage_fork import Fork

FRAMEWORKS: Final = sorted(
    path.parents[1].name
    for path in Path(__file__).parents[1].glob("integrations/*/tests/test_conformance.py")
)
PARTIES: Final = ["reference", *FRAMEWORKS]


# CrewAI reads deprecated fields of its own wherever an agent or a crew is made.
pytestmark = [
    pytest.mark.filterwarnings("ignore:function_calling_llm is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning:crewai"),
]


@pytest.fixture(scope="module")
def cast(matrix_command: ModuleType) -> Iterator[Mapping[str, Party | str]]:
    """Return the frameworks by name, and those not installed here with the reason."""
    with matrix_command.apart():
        yield {name: matrix_command.party(name) for name in PARTIES}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """Return the lab in which every framework replays the others' recordings."""
    return Matrix(tmp_path_factory.mktemp("matrix"))


def the(name: str, cast: Mapping[str, Party | str]) -> Party:
    """Return a framework; skips the test if it is not installed."""
    found = cast[name]
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
@pytest.mark.parametrize("replayer", PARTIES)
@pytest.mark.parametrize("recorder", PARTIES)
def test_what_one_records_the_other_replays(
    cast: Mapping[str, Party | str], matrix: Matrix, recorder: str, replayer: str, case: Case
) -> None:
    found = matrix.cross(the(recorder, cast), the(replayer, cast), case)
    assert found.reasons == ()
    assert found.bodies == 0
    assert found.keys == found.calls > 0


# --- what if? ---


def forked(
    replayer: Party, recorded: tuple[Path, Played], step: int, change: dict[str, Any]
) -> Played:
    """Fork a recorded run in the framework, with one change; returns its "a", "x" and "b"."""
    store, played = recorded
    stage = Stage(replayer.harness, store)
    asked = Fork(played.run, step, change)
    return stage.play(grouped("a", "x", "b")([]), replayer.mode("sync"), stages=[asked])


@pytest.mark.parametrize("replayer", PARTIES)
@pytest.mark.parametrize("recorder", PARTIES)
def test_what_one_records_the_other_forks(
    cast: Mapping[str, Party | str], tmp_path: Path, recorder: str, replayer: str
) -> None:
    there, here = the(recorder, cast), the(replayer, cast)
    played = Stage(there.harness, tmp_path).play(grouped("a", "x", "b")([]), there.mode("sync"))
    recorded = tmp_path, played
    read = forked(here, recorded, 2, {"outcome": {"status": "ok", "value": "fog"}})
    assert read.error is None
    assert read.ran == ()
    assert "fog" in read.seen[1][0]
    assert read.how == ["replayed"] * 3
    write = forked(here, recorded, 1, {"outcome": {"status": "ok", "value": "lost"}})
    assert (write.error, write.ran, write.how) == (None, (), ["replayed"] * 3)
    assert "lost" in write.seen[0][0]
    assert [line["step"] for each in (read, write) for line in each.of("changed")] == [2, 1]
    args = forked(here, recorded, 3, {"args": {"text": "other"}})
    assert isinstance(args.error, ForkEnded)
    assert args.ran == ()
    assert (args.error.status, args.status) == ("would_write", "would_write")


def test_a_fork_elsewhere_asks_the_other_frameworks_model(
    cast: Mapping[str, Party | str], tmp_path: Path
) -> None:
    there, here = the("langchain", cast), the("crewai", cast)
    making = decided(grouped("a", "x", "b"))
    played = Stage(there.harness, tmp_path).play(making([]), there.mode("sync"))
    look = next(each["step"] for each in played.of("step") if each["name"] == "look")
    fork = Fork(played.run, look, {"outcome": {"status": "ok", "value": "fog"}})
    told = Stage(here.harness, tmp_path).play(making([]), here.mode("sync"), stages=[fork])
    assert told.error is None
    assert told.ran == ()
    assert told.script.asked == 4
    assert "fog" in told.seen[1][0]
    assert told.how == ["replayed"] * 3


# --- what only one framework understands ---------------------------------------------------------


class Own(NamedTuple):
    """A value of one framework, and its neutral data for all others."""

    value: Any
    data: Any = None  # None: it means nothing elsewhere
    artifact: bool = False


def _command() -> Own:
    from langgraph.types import Command

    return Own(Command(goto="colleague"))


def _send() -> Own:
    from langgraph.types import Send

    return Own([Send("colleague", {"text": "a"})])


def _document() -> Own:
    from langchain_core.documents import Document

    value = Document(page_content="Once upon", metadata={"source": "tale.txt"})
    return Own(value, {"text": "Once upon", "metadata": {"source": "tale.txt"}})


def _documents() -> Own:
    one = _document()
    return Own([one.value, one.value], [one.data, one.data])


def _artifact() -> Own:
    one = _document()
    return Own(("one found", [one.value]), ("one found", [one.data]), artifact=True)


def _tool_message() -> Own:
    from langchain_core.messages import ToolMessage

    # Ids are others in each run, so a recorded one says only that it is the call's own.
    data = {"role": "tool", "content": "done", "tool_call_id": "(this call)"}
    return Own(ToolMessage("done", tool_call_id="call-0-0"), data)


def _text_message() -> Own:
    from autogen_agentchat.messages import TextMessage

    value = TextMessage(source="ann", content="hello")
    return Own(value, {"source": "ann", "content": "hello"})


def _image() -> Own:
    from autogen_core import Image

    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk"
        "YAAAAAYAAjCB0C8AAAAASUVORK5CYII="
    )
    value = Image.from_base64(pixel)
    return Own(value, {"data": value.to_base64(), "mime_type": "image/png"})


def _tool_failure() -> Own:
    from crewai.tools.tool_failure import ToolFailure

    return Own(ToolFailure(message="no paper"), {"message": "no paper"})


REFUSED: Final[Sequence[tuple[str, Callable[[], Own]]]] = [
    ("langchain", _command),
    ("langchain", _send),
]
PROJECTED: Final[Sequence[tuple[str, Callable[[], Own]]]] = [
    ("langchain", _document),
    ("langchain", _documents),
    ("langchain", _artifact),
    ("langchain", _tool_message),
    ("autogen", _text_message),
    ("autogen", _image),
    ("crewai", _tool_failure),
]


def crossed(recorder: Party, replayer: Party, own: Own, store: Path) -> tuple[Played, Played]:
    """Record a tool that returns such a value in its framework, and replay it in another."""

    def find() -> Any:
        """Find what there is."""
        return own.value

    tools = [ToolSpec(find, artifact=own.artifact)]
    scenario = Scenario(tools, [[("find", {})], "all done"])
    recorded = Stage(recorder.harness, store).play(scenario, recorder.mode("sync"), replay="off")
    replayed = Stage(replayer.harness, store).play(
        scenario, replayer.mode("sync"), replay="offline"
    )
    assert recorded.ran == ("find",)
    assert [step["outcome"]["status"] for step in recorded.steps] == ["ok"]
    assert replayed.ran == ()
    return recorded, replayed


def _name(made: Any) -> str | None:
    return made.__name__.strip("_") if callable(made) else None


@pytest.mark.parametrize("replayer", PARTIES)
@pytest.mark.parametrize(("recorder", "make"), REFUSED, ids=_name)
def test_what_means_nothing_elsewhere_is_refused_there(
    cast: Mapping[str, Party | str],
    tmp_path: Path,
    recorder: str,
    make: Callable[[], Own],
    replayer: str,
) -> None:
    pair = the(recorder, cast), the(replayer, cast)
    recorded, replayed = crossed(*pair, make(), tmp_path)
    if replayer == recorder:  # at home it is itself
        assert not isinstance(replayed.error, NotReplayable)
        assert (repr(replayed.error), replayed.seen) == (repr(recorded.error), recorded.seen)
        return
    assert isinstance(replayed.error, NotReplayable)
    said = f"a {recorder}.{_name(make)} means something in {recorder} only: replay this step there"
    assert said in str(replayed.error)
    assert "(find)" in str(replayed.error)


def _placeless(played: Played) -> str:
    """Return what the model was shown, without the address of an object in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(played.seen))


@pytest.mark.parametrize("replayer", PARTIES)
@pytest.mark.parametrize(("recorder", "make"), PROJECTED, ids=_name)
def test_values_of_one_framework_cross_as_neutral_data(
    cast: Mapping[str, Party | str],
    tmp_path: Path,
    recorder: str,
    make: Callable[[], Own],
    replayer: str,
) -> None:
    pair = the(recorder, cast), the(replayer, cast)
    own = make()
    recorded, replayed = crossed(*pair, own, tmp_path)
    assert replayed.error is None
    if replayer == recorder:
        assert _placeless(replayed) == _placeless(recorded)
        return

    def data() -> Any:
        """Give the neutral data."""
        return own.data

    scenario = Scenario([ToolSpec(data, artifact=own.artifact)], [[("data", {})], "all done"])
    live = Stage(pair[1].harness, tmp_path).plain(scenario, pair[1].mode("sync"))
    assert live.error is None
    assert replayed.seen == live.seen


# --- the command ---------------------------------------------------------------------------------


class Forgetful(ReferenceHarness):
    """Guard nothing."""

    def run(self, performance: Performance) -> Result:
        script = performance.script
        return Result(str(script.answer(0, ())) if performance.session is None else "nothing")


def test_the_command_prints_a_table_and_its_figures(
    matrix_command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert matrix_command.main(["reference"]) == 0
    head, line, row, figures = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["record", "replay", "sync"]
    assert set(line) == {"-", " "}
    assert row.split()[:3] == ["reference", "reference", "✓"]
    assert figures.startswith(f"{len(CASES)} of {len(CASES)} crossings pass; 0 bodies run")


def test_the_command_fails_and_names_missing_crossings(
    matrix_command: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    harness: Harness = Forgetful()
    monkeypatch.setattr(matrix_command, "party", lambda name: Party(name, harness))
    assert matrix_command.main(["reference"]) == 1
    said = capsys.readouterr().out
    assert "✗ reference → reference: sync, calls, sync: " in said
    assert matrix_command.main(["--json", "reference"]) == 1
    told = json.loads(capsys.readouterr().out)["crossings"]
    assert told[0] | {"reasons": []} == {
        "recorder": "reference",
        "replayer": "reference",
        "case": "sync",
        "ok": False,
        "bodies": 0,
        "keys": 0,
        "calls": 0,
        "reasons": [],
    }


def test_the_command_says_what_it_leaves_out(
    matrix_command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert matrix_command.main(["unheard_of"]) == 1
    said = capsys.readouterr().out
    assert "left out: unheard_of (rollcage_unheard_of is not installed in this env" in said


def test_counts_are_added_up(matrix_command: ModuleType) -> None:
    one = Crossing("a", "b", CASES[0].name, bodies=1, keys=2, calls=3, reasons=("first",))
    _, _, row, *reasons = matrix_command.table([one + one]).splitlines()
    assert row.split() == ["a", "b", "✗", "2", "4", "of", "6"]
    assert reasons == ["✗ a → b: first"] * 2
    assert matrix_command.summary([one]) == (
        "0 of 1 crossings pass; 1 bodies run in replay; 2 of 3 keys equal"
    )


def test_a_framework_without_its_libraries_is_left_out(
    matrix_command: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tests = tmp_path / "integrations" / "conformance" / "tests"  # a package that there is
    tests.mkdir(parents=True)
    monkeypatch.setattr(matrix_command, "ROOT", tmp_path)
    (tests / "test_conformance.py").write_text("import no_such_framework\n", encoding="utf-8")
    said = matrix_command.party("conformance")
    assert said == (
        "no_such_framework, which conformance needs, is not installed in this environment"
    )
    (tests / "test_conformance.py").write_text("import rollcage.no_such\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        matrix_command.party("conformance")  # a mistake of the adapter's own
