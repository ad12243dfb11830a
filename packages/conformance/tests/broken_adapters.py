"""Adapters with one mistake each. Not collected: test_broken_adapters.py runs them."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from rollcage import (
    ApprovalRequired,
    Blocked,
    Contract,
    OutputDrift,
    RunStopped,
    Session,
    SessionHalted,
)

from rollcage_conformance import (
    AdapterSuite,
    ApprovalSuite,
    FacadeSuite,
    FlowSuite,
    GateSuite,
    Harness,
    IsolationSuite,
    LimitSuite,
    OutcomeSuite,
    OutputSuite,
    Performance,
    PolicySuite,
    ReplaySuite,
    Result,
    SecretSuite,
    Suite,
    ToolCall,
    ToolSpec,
    TraceSuite,
    ValueSuite,
)
from rollcage_conformance.reference import ReferenceHarness, text_of
from rollcage_conformance.suites.gate import HookCrash

Body = Callable[..., Any]


def wrapped(spec: ToolSpec, body: Body, around: Callable[[Any], Any]) -> Body:
    """The body with its value changed, sync or async."""
    if not spec.is_async:
        return lambda **arguments: around(body(**arguments))

    async def abody(**arguments: Any) -> Any:
        return around(await body(**arguments))

    return abody


def guarded_by(session: Session, function: Body) -> Body:
    """A function that goes through a session, whoever calls it."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def acalled(**arguments: Any) -> Any:
            return await session.acall(function, **arguments)

        return acalled

    @functools.wraps(function)
    def called(**arguments: Any) -> Any:
        return session.call(function, **arguments)

    return called


class RunsTwice(ReferenceHarness):
    """Runs the tool once to see whether it works."""

    def body(self, performance: Performance, spec: ToolSpec) -> Body:
        body = super().body(performance, spec)
        if spec.is_async:

            async def atwice(**arguments: Any) -> Any:
                await body(**arguments)
                return await body(**arguments)

            return atwice

        def twice(**arguments: Any) -> Any:
            body(**arguments)
            return body(**arguments)

        return twice


class RecordsText(ReferenceHarness):
    """Records what the model is shown, instead of what the tool gave."""

    def body(self, performance: Performance, spec: ToolSpec) -> Body:
        return wrapped(spec, super().body(performance, spec), text_of)


class Unguarded(ReferenceHarness):
    """Runs the body by itself where the session refuses with one of these errors."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()

    def guarded(self, session: Session, contract: Contract, arguments: Any, body: Body) -> Any:
        try:
            return super().guarded(session, contract, arguments, body)
        except self.errors:
            return body(**arguments)

    async def aguarded(
        self, session: Session, contract: Contract, arguments: Any, body: Body
    ) -> Any:
        try:
            return await super().aguarded(session, contract, arguments, body)
        except self.errors:
            value = body(**arguments)
            return await value if inspect.isawaitable(value) else value


class SwallowsDeny(Unguarded):
    """Takes a denial for advice."""

    errors = (Blocked,)


class RunsDrifted(Unguarded):
    """Runs a tool once more where its output broke its promise, and shows what it gives."""

    errors = (OutputDrift,)


class RunsAfterHalt(Unguarded):
    """Goes on in a halted session, and never ends the agent."""

    errors = (SessionHalted, RunStopped)

    def check(self, performance: Performance) -> Session | None:
        return performance.session


class FailsOpen(Unguarded):
    """Runs the tool where guarding it failed, whatever the reason."""

    errors = (Exception,)


class HookFailsOpen(ReferenceHarness):
    """Runs the whole message unguarded where the hook before it has a bug."""

    def call_all(self, performance: Performance, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        try:
            return super().call_all(performance, calls)
        except HookCrash:
            return super().call_all(dataclasses.replace(performance, session=None), calls)

    async def acall_all(
        self, performance: Performance, calls: Sequence[ToolCall]
    ) -> tuple[str, ...]:
        try:
            return await super().acall_all(performance, calls)
        except HookCrash:
            plain = dataclasses.replace(performance, session=None)
            return await super().acall_all(plain, calls)


class IgnoresSlots(ReferenceHarness):
    """Starts the calls of a message in an order of its own, and tells nobody their places."""

    def call_all(self, performance: Performance, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        order = self.order(len(calls))
        done = {i: super(IgnoresSlots, self).call_all(performance, [calls[i]])[0] for i in order}
        return tuple(done[i] for i in range(len(calls)))

    async def acall_all(
        self, performance: Performance, calls: Sequence[ToolCall]
    ) -> tuple[str, ...]:
        done = {}
        for i in self.order(len(calls)):
            done[i] = (await super().acall_all(performance, [calls[i]]))[0]
        return tuple(done[i] for i in range(len(calls)))

    def order(self, count: int) -> Sequence[int]:
        """Backwards."""
        return range(count - 1, -1, -1)


class LosesContext(ReferenceHarness):
    """Runs bodies in threads that know nothing of where they were started."""

    def body(self, performance: Performance, spec: ToolSpec) -> Body:
        body = super().body(performance, spec)
        if spec.is_async:
            return body

        def elsewhere(**arguments: Any) -> Any:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(lambda: body(**arguments)).result()

        return elsewhere


class InjectsIntoKey(ReferenceHarness):
    """Takes what the framework injects for an argument."""

    def call(self, performance: Performance, name: str, arguments: Any) -> Any:
        return super().call(*self.confused(performance, name, arguments))

    async def acall(self, performance: Performance, name: str, arguments: Any) -> Any:
        return await super().acall(*self.confused(performance, name, arguments))

    def confused(self, performance: Performance, name: str, arguments: Any) -> Any:
        spec = performance.tools[name]
        if spec.injected:
            arguments = {**arguments, spec.injected: performance.scenario.injected}
            tools = {**performance.tools, name: dataclasses.replace(spec, injected="")}
            performance = dataclasses.replace(performance, tools=tools)
        return performance, name, arguments


class AttemptIntoKey(ReferenceHarness):
    """Takes what is another in each attempt for a part of the call."""

    def nonce(self, session: Session) -> str:
        """A random text for each session."""
        return str(vars(session).setdefault("_nonce", os.urandom(8).hex()))

    def guarded(self, session: Session, contract: Contract, arguments: Any, body: Body) -> Any:
        contract = dataclasses.replace(contract, version=self.nonce(session))
        return super().guarded(session, contract, arguments, body)

    async def aguarded(
        self, session: Session, contract: Contract, arguments: Any, body: Body
    ) -> Any:
        contract = dataclasses.replace(contract, version=self.nonce(session))
        return await super().aguarded(session, contract, arguments, body)


class MixesSessions(ReferenceHarness):
    """Keeps the session in one place for all agents."""

    newest: ClassVar[list[Session | None]] = [None]

    def run(self, performance: Performance) -> Result:
        self.newest[0] = performance.session
        return super().run(performance)

    async def arun(self, performance: Performance) -> Result:
        self.newest[0] = performance.session
        return await super().arun(performance)

    def guarded(self, session: Session, contract: Contract, arguments: Any, body: Body) -> Any:
        return super().guarded(self.newest[0] or session, contract, arguments, body)

    async def aguarded(
        self, session: Session, contract: Contract, arguments: Any, body: Body
    ) -> Any:
        session = self.newest[0] or session
        return await super().aguarded(session, contract, arguments, body)


class ForgetsAsync(ReferenceHarness):
    """Guards synchronous agents only."""

    async def arun(self, performance: Performance) -> Result:
        return await super().arun(dataclasses.replace(performance, session=None))


class GuardsOriginals(ReferenceHarness):
    """Leaves its guard in the tools that it was given."""

    def run(self, performance: Performance) -> Result:
        self.leave_guard(performance)
        return super().run(performance)

    async def arun(self, performance: Performance) -> Result:
        self.leave_guard(performance)
        return await super().arun(performance)

    def leave_guard(self, performance: Performance) -> None:
        session = performance.session
        if session is not None:
            for name, spec in list(performance.tools.items()):
                guard = guarded_by(session, spec.function)
                performance.tools[name] = dataclasses.replace(spec, function=guard)


class GuardsEveryAgent(ReferenceHarness):
    """Guards agents that nobody asked it to, once it has seen a session."""

    last: ClassVar[list[Session]] = []

    def run(self, performance: Performance) -> Result:
        return super().run(self.noted(performance))

    async def arun(self, performance: Performance) -> Result:
        return await super().arun(self.noted(performance))

    def noted(self, performance: Performance) -> Performance:
        if performance.session is None:
            return dataclasses.replace(performance, session=self.last[-1] if self.last else None)
        self.last.append(performance.session)
        return performance


class RunsUnapproved(Unguarded):
    """Takes a question for a yes."""

    errors = (ApprovalRequired,)


class IgnoresEdits(ReferenceHarness):
    """Runs a call as the model asked for it, whatever an approver made of it."""

    def guarded(self, session: Session, contract: Contract, arguments: Any, body: Body) -> Any:
        return super().guarded(session, contract, arguments, lambda **_: body(**arguments))

    async def aguarded(
        self, session: Session, contract: Contract, arguments: Any, body: Body
    ) -> Any:
        own: Body = lambda **_: body(**arguments)  # noqa: E731 - as above
        return await super().aguarded(session, contract, arguments, own)


class ShowsHalts(ReferenceHarness):
    """Shows the model what halted the session, as if it were an error of the tool."""

    def check(self, performance: Performance) -> Session | None:
        return performance.session

    def answer_to(self, error: Exception) -> str:
        return f"error: {error}"


class TriesAgain(ReferenceHarness):
    """Runs a tool that failed once more, in the hope that it works then."""

    def body(self, performance: Performance, spec: ToolSpec) -> Body:
        body = super().body(performance, spec)
        if spec.is_async:

            async def aagain(**arguments: Any) -> Any:
                try:
                    return await body(**arguments)
                except ValueError:
                    return await body(**arguments)

            return aagain

        def again(**arguments: Any) -> Any:
            try:
                return body(**arguments)
            except ValueError:
                return body(**arguments)

        return again


class ForgetsSecrets(ReferenceHarness):
    """Hands on the schema of a tool's parameters, and nothing else that is declared of them."""

    def contract(self, spec: ToolSpec) -> Contract:
        contract = super().contract(spec)
        names = contract.parameter_names
        plain = {"properties": {name: {"type": "string"} for name in names}}
        secret: frozenset[str] = frozenset()
        return dataclasses.replace(contract, parameters=plain, secret=secret)

    def body(self, performance: Performance, spec: ToolSpec) -> Body:
        body = super().body(performance, spec)
        model: Any = spec.contract.parameters
        return lambda **arguments: body(**dict(model.model_validate(arguments)))


class Broken(Suite):
    """The suites, over one of the above."""

    rounds = 3
    adapter: ClassVar[type[ReferenceHarness]] = ReferenceHarness

    @pytest.fixture
    def harness(self) -> Harness:
        return self.adapter()


class TestSound(Broken, AdapterSuite):
    """The control: nothing is wrong with this one."""


class TestRunsTwice(Broken, ReplaySuite, ApprovalSuite):
    adapter = RunsTwice


class TestRecordsText(Broken, ValueSuite, TraceSuite):
    adapter = RecordsText


class TestSwallowsDeny(
    Broken, GateSuite, ApprovalSuite, PolicySuite, LimitSuite, FlowSuite, FacadeSuite
):
    adapter = SwallowsDeny


class TestRunsAfterHalt(Broken, GateSuite, LimitSuite):
    adapter = RunsAfterHalt


class TestFailsOpen(Broken, GateSuite, ReplaySuite):
    adapter = FailsOpen


class TestHookFailsOpen(Broken, GateSuite):
    adapter = HookFailsOpen


class TestIgnoresSlots(Broken, ReplaySuite):
    adapter = IgnoresSlots


class TestLosesContext(Broken, IsolationSuite):
    adapter = LosesContext


class TestInjectsIntoKey(Broken, ValueSuite):
    adapter = InjectsIntoKey


class TestAttemptIntoKey(Broken, ReplaySuite, ApprovalSuite):
    adapter = AttemptIntoKey


class TestMixesSessions(Broken, IsolationSuite):
    adapter = MixesSessions


class TestForgetsAsync(Broken, ReplaySuite, OutcomeSuite):
    adapter = ForgetsAsync


class TestGuardsOriginals(Broken, IsolationSuite):
    adapter = GuardsOriginals


class TestGuardsEveryAgent(Broken, IsolationSuite):
    adapter = GuardsEveryAgent


class TestRunsDrifted(Broken, OutputSuite):
    adapter = RunsDrifted


class TestRunsUnapproved(Broken, ApprovalSuite):
    adapter = RunsUnapproved


class TestIgnoresEdits(Broken, ApprovalSuite):
    adapter = IgnoresEdits


class TestShowsHalts(Broken, ReplaySuite, ApprovalSuite):
    adapter = ShowsHalts


class TestTriesAgain(Broken, OutcomeSuite):
    adapter = TriesAgain


class TestForgetsSecrets(Broken, SecretSuite):
    adapter = ForgetsSecrets
