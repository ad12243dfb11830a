"""Tests of one agent, with a framework and without: recorded, then failing where it is changed."""

import contextlib
import io
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
QUIET = ["-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:logging"]
QUIET += ["-p", "no:benchmark"]  # it would leave a folder


def run_tests(folder: str, record: str) -> str:
    """Run the tests in a folder; what pytest prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main([*QUIET, f"--rollcage-record={record}", f"--rootdir={folder}", folder])
    return said.getvalue()


def main() -> None:
    """Record, then change what the agent is asked to do."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"HOME": folder, "XDG_DATA_HOME": folder}  # where CrewAI keeps its database
        os.environ.update(own, CREWAI_DISABLE_TELEMETRY="true", CREWAI_TESTING="true")
        shutil.copy(Path(__file__).with_name("test_newsletter.py"), folder)
        (Path(folder) / "pytest.ini").write_text(INI, encoding="utf-8")
        said = run_tests(folder, "once")
        assert "8 passed" in said, said
        print("recorded, with the (scripted) models:")
        for path in sorted(Path(folder).rglob("*.jsonl")):
            print(" ", path.relative_to(folder))

        print("\nreplayed, but four of the agents are asked to do something else:")
        os.environ["QUESTION"] = "Send everybody the news."
        said = run_tests(folder, "none")
        assert "4 failed, 4 passed" in said, said
        for framework in ("plain", "langchain", "autogen", "crewai"):
            command = f"pytest test_newsletter.py::test_{framework}_sends --rollcage-record=rewrite"
            assert f"If the new behaviour is right: {command}" in said, said
            print(f"  test_{framework}_sends fails. {command}")
        reason = re.search(r"it differs in argument 'messages' at .*", said)
        assert reason is not None, said
        print(f"  {reason[0]}")


if __name__ == "__main__":
    main()
