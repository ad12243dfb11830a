"""What holds for every command: one-line errors, exit codes, help, colours."""

import os
import pty
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage.errors import RollcageError
from rollcage_cli import app, errors, verify

Cli = Callable[..., Any]
Record = Callable[..., str]
COMMANDS = ("demo", "runs", "show", "verify", "diff", "resolve", "export")


def process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rollcage", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def terminal(*arguments: str, **environment: str) -> str:
    """What a terminal gets to see."""
    parent, child = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", **environment}
    command = [sys.executable, "-m", "rollcage", *arguments]
    seen = b""
    with subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=env):
        os.close(child)
        while chunk := _read(parent):
            seen += chunk
    os.close(parent)
    return seen.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux: the other side is closed
        return b""


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    code = """
        import sys
        from rollcage_cli.app import main

        assert main(["--version"]) == 0
        waited = [name for name in sys.modules if name.split(".")[0] in ("pydantic", "rich")]
        assert not waited, waited
        assert main(["abandon", "--help"]) == 0
        others = {"rollcage_cli.audit", "rollcage_cli.demo", "rollcage_policy.commands"}
        assert "rollcage_cli.abandon" in sys.modules and not others & sys.modules.keys()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_command_of_another_package_is_imported_alone() -> None:
    code = """
        import sys
        from importlib.metadata import EntryPoint, EntryPoints
        from rollcage_cli import app

        brought = EntryPoint("mine", "rollcage_cli.abandon:abandon", app.GROUP)
        app._installed = lambda: EntryPoints([brought])
        assert app.main(["mine", "--help"]) == 0
        others = {"rollcage_cli.audit", "rollcage_cli.demo", "rollcage_cli.show"}
        assert "rollcage_cli.abandon" in sys.modules and not others & sys.modules.keys()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_command_that_is_misspelled_gets_its_neighbours(cli: Cli) -> None:
    result = cli("verfiy")
    assert result.code == 2
    assert "Did you mean 'verify'?" in result.err


def test_every_command_has_a_short_help(cli: Cli) -> None:
    whole = cli("--help")
    assert whole.code == 0
    assert "Exit codes: 0 done, 1 a difference" in whole.out
    for command in COMMANDS:
        assert f"\n  {command} " in whole.out
        result = cli(command, "--help")
        assert result.code == 0
        assert len(result.out.splitlines()) < 30
        assert "--json" in result.out


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "Commands:" in result.out + result.err


def test_the_version(cli: Cli) -> None:
    assert re.fullmatch(r"rollcage \d+\.\d+\.\d+\n", cli("--version").out)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["diff", "one"], ["runs", "--nonsense"], ["resolve", "x", "none"]]
)
def test_bad_usage(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert "Usage: rollcage" in result.err


def test_an_error_is_one_line_for_people_and_an_object_for_machines(cli: Cli) -> None:
    assert cli("show", "latest").err.count("\n") == 1
    result = cli("show", "latest", "--json")
    assert result.out == ""
    assert orjson.loads(result.err) == {
        "error": {
            "code": "run_not_found",
            "message": "there are no runs in .rollcage; name their store with --store",
        }
    }


def test_a_store_that_is_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = cli("runs", "--store", tmp_path / "file" / "store")
    assert result.code == 2
    assert result.err.startswith("rollcage: there is no store at ")
    result = cli("runs", "--store", "mysql://host/runs")
    assert (result.code, result.out) == (2, "")


def test_a_bug_is_one_line_too(
    cli: Cli, record: Record, monkeypatch: pytest.MonkeyPatch, evil: str
) -> None:
    run = record()

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(evil)

    monkeypatch.setattr(verify, "find", broken)
    result = cli("verify", run)
    assert result.code == 5
    assert result.err.startswith("rollcage: ZeroDivisionError: ")
    assert result.err.endswith("(--debug shows where)\n")
    assert not {"\x1b", "\x07", "\x9b"} & set(result.err)
    assert orjson.loads(cli("verify", run, "--json").err)["error"]["code"] == "unexpected"
    for arguments in (["--debug", "verify", run], ["verify", run, "--debug"]):
        with pytest.raises(ZeroDivisionError):
            cli(*arguments)


def test_an_interrupt(cli: Cli, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "find", interrupted)
    result = cli("verify", run)
    assert (result.code, result.err) == (130, "")


def test_real_processes_end_with_the_codes(record: Record, edit: Any) -> None:
    run = record()
    assert process("verify", run).returncode == 0
    assert process("show", "nothing").returncode == 2
    edit(run, lambda lines: lines[1:])
    corrupt = process("show", run)
    assert corrupt.returncode == 3
    assert "Traceback" not in corrupt.stderr
    debug = process("show", run, "--debug")
    assert "Traceback" in debug.stderr


def test_every_error_has_a_code_and_an_exit_code() -> None:
    classes: list[type[RollcageError]] = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and each.__module__ == errors.__name__
    ]
    assert len({each.code for each in classes}) == len(classes)
    for each in classes:
        assert f"({each.code})" in str(errors.__doc__)
        assert errors.exit_code(each("x")) in {errors.DIFFERENT, errors.USAGE}


def test_a_pipe_gets_no_colours(record: Record) -> None:
    run = record()
    for arguments in (["runs"], ["show", run], ["verify", run], ["diff", run, run], ["--help"]):
        assert "\x1b" not in process(*arguments).stdout
    assert "\x1b" not in process("show", "nothing").stderr


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9[0-7])(?:;\d+)*m")


def test_a_terminal_gets_colours_unless_they_are_switched_off(record: Record) -> None:
    run = record()
    assert COLOUR.search(terminal("show", run))
    assert not COLOUR.search(terminal("show", run, NO_COLOR="1"))
    assert not COLOUR.search(terminal("show", "nothing", NO_COLOR="1"))


def test_hostile_data_on_a_real_terminal(record: Record, evil: str) -> None:
    run = record(f"job{evil}", text=evil)
    for arguments in (["show", run], ["runs"], ["export", run], ["show", run, "--json"]):
        seen = terminal(*arguments, NO_COLOR="1")
        assert "owned" in seen
        assert "\x1b]" not in seen
        assert not {"\x07", "\x9b", "\u202e", "\u2028"} & set(seen)


def test_a_terminal_that_knows_only_ascii(record: Record) -> None:
    result = process("show", record(), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0
    assert "#" in result.stdout


def test_shell_completion(cli: Cli) -> None:
    assert "--install-completion" in cli("--help").out
    words = {"_ROLLCAGE_COMPLETE": "complete_bash", "COMP_WORDS": "rollcage ver", "COMP_CWORD": "1"}
    assert process(**words).stdout.split() == ["verify"]


def test_main_takes_the_process_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rollcage", "--version"])
    assert app.main() == 0
    assert capsys.readouterr().out.startswith("rollcage ")


def test_a_command_of_a_package_that_is_not_here_names_it(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_installed", metadata.EntryPoints)
    result = cli("tools", "list")
    assert result.code == 2
    assert result.err == (
        "rollcage: rollcage tools comes with rollcage-governance, which is not installed: pip "
        "install 'rollcage[governance]'\n"
    )
    assert cli("--help").code == 0


def test_the_shell_completes_commands_and_their_options() -> None:
    def completed(words: str, at: int) -> str:
        asked = {"_ROLLCAGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        done = subprocess.run(
            [sys.executable, "-c", "from rollcage_cli.app import main; main()"],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout

    assert completed("rollcage do", 1).split() == ["doctor"]
    assert {"copy", "prune", "repair"} <= {*completed("rollcage ", 1).split()}
    assert {"--older", "--hold", "--keep-skeleton"} <= {*completed("rollcage prune --", 2).split()}
