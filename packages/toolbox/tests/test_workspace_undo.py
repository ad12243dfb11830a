"""Each change of a workspace is observed, planned for, probed and undone exactly."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Compensation, DidNotHappen, Happened
from rollcage_toolbox import Changed, PathRefused, Workspace

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"path": "new.txt", "content": "new"}),
    ("write_file", {"path": "a.txt", "content": "other"}),
    ("write_file", {"path": "data.bin", "content": "AAEC/w==", "encoding": "base64"}),
    ("append_file", {"path": "a.txt", "content": "more"}),
    ("append_file", {"path": "new.txt", "content": "more"}),
    ("edit_file", {"path": "a.txt", "old": "one", "new": "two"}),
    ("copy_file", {"source": "a.txt", "target": "d/b.txt"}),
    ("copy_file", {"source": "a.txt", "target": "data.bin", "overwrite": True}),
    ("move_file", {"source": "a.txt", "target": "d/b.txt"}),
    ("move_file", {"source": "a.txt", "target": "data.bin", "overwrite": True}),
    ("delete_file", {"path": "data.bin"}),
    ("make_dir", {"path": "e"}),
    ("make_dir", {"path": "d/e/f/g", "parents": True}),
    ("delete_dir", {"path": "empty"}),
    ("archive", {"source": "d", "target": "d.zip"}),
    ("archive", {"source": ".", "target": "all.tar.gz", "format": "tar.gz"}),
    ("archive", {"source": "d", "target": "data.bin", "format": "tar", "overwrite": True}),
    ("unarchive", {"source": "packed.zip", "target": "out"}),
    ("restore_file", {"path": "a.txt", "data": b"\x00\xff", "mode": 0o600}),
    ("restore_dir", {"path": "empty", "mode": 0o700}),
    ("remove_entry", {"path": "a.txt"}),
    ("remove_entry", {"path": "empty"}),
]
IDS = [f"{name}-{n}" for n, (name, _) in enumerate(CHANGES)]
each_change = pytest.mark.parametrize(("name", "args"), CHANGES, ids=IDS)


@pytest.fixture
def filled(workspace: Workspace) -> Workspace:
    """Files with odd modes and bytes, directories, and an archive."""
    workspace.make_dir("d/inner", parents=True)
    workspace.write_file("d/inner/x.txt", "x")
    workspace.write_file("d/y.sh", "y")
    workspace.archive("d", "packed.zip")
    workspace.make_dir("empty")
    workspace.write_file("a.txt", "one\r\n")
    (workspace.root / "data.bin").write_bytes(bytes(range(256)) * 300)
    (workspace.root / "data.bin").chmod(0o640)
    (workspace.root / "d/y.sh").chmod(0o755)
    (workspace.root / "empty").chmod(0o750)
    return workspace


def contract_of(function: Callable[..., Any]) -> Any:
    return vars(function)["__rollcage_contract__"]


def snapshot(root: Path) -> dict[str, Any]:
    """Every entry with its mode and content."""
    return {
        str(path.relative_to(root)): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in root.rglob("*")
    }


def carry_out(workspace: Workspace, calls: list[Compensation]) -> None:
    for call in calls:
        getattr(workspace, call.tool)(**call.arguments)


class Done:
    """A call made as the engine makes it, with what it kept."""

    def __init__(self, workspace: Workspace, name: str, args: dict[str, Any]) -> None:
        self.tool = getattr(workspace, name)
        self.contract = contract_of(self.tool)
        self.args = args
        self.start = snapshot(workspace.root)
        self.before = self.contract.observe(args)
        self.plan = self.contract.undo(args, self.before)
        self.result: Any = None

    def run(self) -> None:
        self.result = self.tool(**self.args)

    def probed(self) -> Any:
        return self.contract.probe(args=self.args, before=self.before)


@each_change
def test_a_change_is_undone_exactly(filled: Workspace, name: str, args: dict[str, Any]) -> None:
    step = Done(filled, name, args)
    step.run()
    assert snapshot(filled.root) != step.start
    assert step.contract.observe(args) != step.before
    carry_out(filled, step.plan)
    assert snapshot(filled.root) == step.start
    assert step.contract.observe(args) == step.before
    carry_out(filled, step.plan)  # an undo that was interrupted does it again
    assert snapshot(filled.root) == step.start


@each_change
def test_a_probe_tells_from_the_state_alone(
    filled: Workspace, name: str, args: dict[str, Any]
) -> None:
    step = Done(filled, name, args)
    assert step.probed() == DidNotHappen()
    step.run()
    told = step.probed()
    assert told == Happened(step.result)
    for resource in step.before:
        with contextlib.suppress(OSError):
            path = filled.root / resource.removeprefix("file:")
            path.chmod(0o711)
    if any(state["kind"] != "absent" for state in step.contract.observe(args).values()):
        assert step.probed() is None


@each_change
def test_a_plan_is_data_for_another_process(
    filled: Workspace, name: str, args: dict[str, Any]
) -> None:
    step = Done(filled, name, args)
    step.run()
    with Workspace(filled.root) as other:
        assert {call.tool for call in step.plan} <= {f.__name__ for f in other}
        carry_out(other, step.plan)
    assert snapshot(filled.root) == step.start


def test_images_hold_content_and_mode(filled: Workspace) -> None:
    observe = contract_of(filled.move_file).observe
    states = observe({"source": "data.bin", "target": "d/new"})
    assert states["file:d/new"] == {"kind": "absent"}
    state = states["file:data.bin"]
    assert (state["kind"], state["size"], state["mode"]) == ("file", 76_800, 0o640)
    assert state["data"] == bytes(range(256)) * 300
    assert contract_of(filled.delete_dir).observe({"path": "./empty/"}) == {
        "file:empty": {"kind": "dir", "mode": 0o750}
    }
    with Workspace(filled.root, name="inbox") as inbox:
        assert contract_of(inbox.delete_dir).observe({"path": "no/where"}) == {
            "file:inbox:no/where": {"kind": "absent"}
        }


def test_what_can_not_be_observed_is_refused_before_anything_happens(filled: Workspace) -> None:
    (filled.root / "link").symlink_to("a.txt")
    for path in ("link", "../x", "A.TXT"):
        with pytest.raises(PathRefused):
            contract_of(filled.write_file).observe({"path": path, "content": ""})


def test_a_probe_that_can_not_look_can_not_tell(filled: Workspace) -> None:
    step = Done(filled, "write_file", {"path": "new.txt", "content": "x"})
    (filled.root / "new.txt").symlink_to("a.txt")
    assert step.probed() is None


def test_a_directory_that_is_in_use_is_not_taken_away(filled: Workspace) -> None:
    step = Done(filled, "make_dir", {"path": "e"})
    step.run()
    filled.write_file("e/theirs", "")
    with pytest.raises(OSError, match="not empty"):
        carry_out(filled, step.plan)
    assert (filled.root / "e/theirs").exists()


def test_kinds_do_not_turn_into_each_other(filled: Workspace) -> None:
    with pytest.raises(FileExistsError):
        filled.restore_file("empty", b"", 0o644)
    with pytest.raises(FileExistsError):
        filled.restore_dir("a.txt", 0o755)


@pytest.mark.parametrize("what", ["changed", "added", "removed"])
def test_an_unpacked_directory_goes_only_as_it_came(filled: Workspace, what: str) -> None:
    step = Done(filled, "unarchive", {"source": "packed.zip", "target": "out"})
    step.run()
    filled.delete_file("packed.zip")  # the plan needs it no more
    if what == "changed":
        filled.write_file("out/y.sh", "theirs")
    elif what == "added":
        filled.make_dir("out/theirs")
    else:
        filled.delete_file("out/y.sh")
    start = snapshot(filled.root)
    assert step.probed() is None
    with pytest.raises(Changed, match=r"y\.sh|theirs"):
        carry_out(filled, step.plan)
    assert snapshot(filled.root) == start


# Forks a child for each number on its input, which is killed before that call of the system.
KILLED = """
import os, sys
from rollcage_toolbox import Workspace
from rollcage_toolbox.workspace import place, perform

name, args = sys.argv[2], eval(sys.argv[3])
calls = 0

def counted(function, count):
    def run(*a, **k):
        global calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), 9)
        return function(*a, **k)
    return run

def change(count):
    workspace = Workspace(sys.argv[1])
    for each in ("open", "rename", "unlink", "mkdir", "rmdir", "write", "fchmod", "ftruncate"):
        setattr(os, each, counted(getattr(os, each), count))
    getattr(workspace, name)(**args)

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            change(int(line))
            os._exit(7)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def killed_at(process: "subprocess.Popen[str]", count: int) -> int:
    """How a process ended that was killed before its `count`th call of the system, if it had it."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(count, file=process.stdin, flush=True)
    return int(process.stdout.readline())


@pytest.mark.parametrize("change", [0, 1, 3, 8, 9, 10, 13, 14, 17, 20], ids=lambda n: IDS[n])
def test_a_change_that_is_killed_anywhere_happened_or_did_not(
    filled: Workspace, change: int
) -> None:
    name, args = CHANGES[change]
    command = [sys.executable, "-c", KILLED, str(filled.root), name, repr(args)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        for count in range(1, 60):
            step = Done(filled, name, args)
            ended = killed_at(process, count)
            if ended == 7:
                break
            assert ended == -9
            told = step.probed()
            assert told is not None
            if isinstance(told, Happened):
                carry_out(filled, step.plan)
            assert snapshot(filled.root) == step.start  # nothing unfinished is left either
        else:
            pytest.fail("it never came to its end")
    carry_out(filled, step.plan)
    assert snapshot(filled.root) == step.start
    assert not [each for each in filled.root.iterdir() if "tmp" in each.name]
