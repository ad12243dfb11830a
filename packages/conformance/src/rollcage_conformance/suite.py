"""The base of all suites: the harness, the capabilities, and the rule against changed tests."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import pytest

from rollcage_conformance.scenario import Capabilities, Harness
from rollcage_conformance.stage import Stage, modes

__all__ = ["Suite", "needs"]

F = TypeVar("F", bound=Callable[..., None])
Capability = Literal[
    "sync",
    "asynchronous",
    "streaming",
    "parallel",
    "injection",
    "halting",
    "models",
    "usage",
    "reasoning",
    "replay_models",
    "memory",
]
_NEEDS = "__rollcage_needs__"
_PACKAGE = __name__.partition(".")[0]


def needs(*capabilities: Capability) -> Callable[[F], F]:
    """Mark a test that is skipped if the adapter lacks one of these capabilities."""

    def mark(test: F) -> F:
        setattr(test, _NEEDS, capabilities)
        return test

    return mark


class Suite:
    """The base of an adapter's test class: it has the fixture `harness` and its `capabilities`.

    A test may be overridden only to mark it `xfail` with a reason; any other override is a
    `TypeError` at the class definition::

        class TestGate(GateSuite):
            capabilities = Capabilities(streaming=False)

            @pytest.fixture
            def harness(self) -> Harness:
                return MyHarness()

            @pytest.mark.xfail(reason="the framework drops …")
            def test_a_denied_call_runs_nothing(self, stage: Stage, mode: Mode) -> None:
                super().test_a_denied_call_runs_nothing(stage, mode)
    """

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _check_overrides(cls)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test with a `mode` in every mode of the adapter."""
        if "mode" in metafunc.fixturenames:
            can = self.capabilities
            metafunc.parametrize("mode", modes(sync=can.sync, asynchronous=can.asynchronous))

    @pytest.fixture
    def harness(self) -> Harness:
        """Return the harness: the one thing that an adapter brings."""
        raise NotImplementedError(f"{type(self).__name__} gives no fixture `harness`")

    @pytest.fixture
    def stage(self, harness: Harness, tmp_path: Path) -> Stage:
        """Return the harness over a store of this test's own."""
        return Stage(harness, tmp_path / "store")

    @pytest.fixture(autouse=True)
    def _capable(self, request: pytest.FixtureRequest) -> None:
        for capability in getattr(request.function, _NEEDS, ()):
            if not getattr(self.capabilities, capability):
                pytest.skip(f"the adapter declares capabilities.{capability} = False")


def _check_overrides(cls: type[Suite]) -> None:
    """Refuse a subclass outside of this package that changes a test.

    Raises:
        TypeError: names the tests.
    """
    if cls.__module__.partition(".")[0] == _PACKAGE:
        return
    standard: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == _PACKAGE:
            standard |= {n: v for n, v in vars(base).items() if n.startswith("test_")}
    bent = [
        name
        for name, test in standard.items()
        if (own := inspect.getattr_static(cls, name)) is not test and not _is_reasoned_xfail(own)
    ]
    if bent:
        raise TypeError(
            f"{cls.__qualname__} overrides {', '.join(sorted(bent))}: a conformance test may only "
            f'be marked @pytest.mark.xfail(reason="...")'
        )


def _is_reasoned_xfail(test: object) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
