"""A secret is used, and is in no file."""

from hashlib import sha256
from typing import Final

import pytest
from pydantic import SecretStr
from rollcage import ReplayMiss, StepView, Verdict

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Stage
from rollcage_conformance.suite import Suite

__all__ = ["SecretSuite"]

SECRET: Final = "correct-horse-battery-staple"  # noqa: S105 - nobody's


def no_login(step: StepView) -> Verdict | None:
    """Deny everything."""
    return Verdict.deny(f"no {step.name} today")


class SecretSuite(Suite):
    """Secret parameters: by their type, and declared."""

    @pytest.mark.parametrize("form", ["typed", "declared"])
    def test_a_secret_reaches_the_tool_and_no_file(
        self, stage: Stage, mode: Mode, form: str
    ) -> None:
        used: list[str] = []
        scenario = login(form, used)
        recorded = stage.play(scenario, mode)
        assert recorded.error is None
        assert used == [SECRET]
        assert recorded.seen == [("welcome ann",)]
        replayed = stage.play(scenario, mode, replay="offline")
        assert replayed.error is None
        assert (replayed.ran, replayed.seen) == ((), recorded.seen)
        check_files(stage)

    @pytest.mark.parametrize("form", ["typed", "declared"])
    def test_another_secret_is_another_call(self, stage: Stage, mode: Mode, form: str) -> None:
        used: list[str] = []
        stage.play(login(form, used), mode)
        other = stage.play(login(form, used, "another one"), mode, replay="offline")
        assert isinstance(other.error, ReplayMiss)
        assert used == [SECRET]
        assert SECRET not in str(other.error)
        assert "another one" not in str(other.error)

    @pytest.mark.parametrize("form", ["typed", "declared"])
    def test_the_secret_of_a_denied_call_is_in_no_file(
        self, stage: Stage, mode: Mode, form: str
    ) -> None:
        used: list[str] = []
        played = stage.play(login(form, used), mode, gate=[no_login])
        assert played.how == ["blocked"]
        assert used == []
        check_files(stage)


def login(form: str, used: list[str], password: str = SECRET) -> Scenario:
    """Return an agent that logs in with a password; `used` notes with which."""

    def typed(user: str, password: SecretStr) -> str:
        """Log in."""
        used.append(password.get_secret_value())
        return f"welcome {user}"

    def declared(user: str, password: str) -> str:
        """Log in."""
        used.append(password)
        return f"welcome {user}"

    spec = ToolSpec(typed) if form == "typed" else ToolSpec(declared, secret=("password",))
    script: list[Message] = [[(spec.name, {"user": "ann", "password": password})], "all done"]
    return Scenario([spec], script)


def check_files(stage: Stage) -> None:
    """Check that no file of the store holds the secret, or a guessable hash of it."""
    files = [path.read_bytes() for path in stage.root.rglob("*") if path.is_file()]
    values = {
        kind: [stage.store.get(kind, key) or b"" for key in stage.store.keys(kind)]
        for kind in ("names", "blobs", "requests", "decisions")
    }
    files += [line for run in values.pop("names") for line in stage.store.read(run.decode())]
    files += [value for each in values.values() for value in each]
    assert any(b'{"event":"run"' in data for data in files)
    for data in files:
        assert SECRET.encode() not in data
        assert sha256(SECRET.encode()).hexdigest().encode() not in data
