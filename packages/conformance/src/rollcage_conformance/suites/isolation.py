"""A session guards its own agent, with all its calls, and nothing else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from rollcage import ApprovalRequired, StepView, Verdict, current_step, tool

from rollcage_conformance.scenario import Message, Scenario, ToolSpec
from rollcage_conformance.stage import Mode, Played, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import Crash, notes

__all__ = ["IsolationSuite"]

YIELDS = 100_000  # turns of an event loop that an agent waits for another; few are needed
PATIENCE = 60.0  # seconds until a broken adapter's agents no longer wait for each other


class IsolationSuite(Suite):
    """Nested calls, plain agents next to guarded ones, two sessions at once."""

    def test_calls_in_a_tool_body_are_nested_steps(self, stage: Stage, mode: Mode) -> None:
        inner: list[str] = []

        @tool(effect="write")
        def log(line: str) -> str:
            """Write a line down."""
            inner.append(line)
            return f"logged {line}"

        def work(job: str) -> str:
            """Do a job, and write it down."""
            return log(line=f"{job} began") + ", " + log(line=f"{job} ended")

        scenario = Scenario([ToolSpec(work)], [[("work", {"job": "x"})], "all done"])
        recorded = stage.play(scenario, mode)
        assert recorded.error is None
        assert [(s["name"], s["parent"]) for s in recorded.steps] == [
            ("work", None),
            ("log", 0),
            ("log", 0),
        ]
        assert len(inner) == 2
        replayed = stage.play(scenario, mode, replay="offline")
        assert (replayed.ran, len(inner)) == ((), 2)
        assert replayed.how == ["replayed"]  # the parent's hit covers its children
        assert replayed.seen == recorded.seen

    def test_a_body_knows_its_step(self, stage: Stage, mode: Mode) -> None:
        keys: list[str] = []

        def work() -> str:
            """Do something under an idempotency key."""
            step = current_step()
            assert step is not None
            keys.append(step.idempotency_key)
            return step.name

        script: list[Message] = [[("work", {})], [("work", {})], "all done"]
        played = stage.play(Scenario([ToolSpec(work)], script), mode)
        assert played.seen == [("work",), ("work",)]
        assert len(set(keys)) == 2

    def test_a_plain_agent_beside_a_guarded_one_is_untouched(
        self, stage: Stage, mode: Mode
    ) -> None:
        scenario = notes("a", "b")
        expected = stage.plain(scenario, mode)
        beside: list[Played] = []

        def meanwhile() -> str:
            """Run another agent, which nothing guards."""
            with ThreadPoolExecutor(1) as thread:  # another loop can't run in this thread
                beside.append(thread.submit(stage.plain, scenario, mode).result())
            return "back"

        script: list[Message] = [[("meanwhile", {})], "all done"]
        guarded = stage.play(Scenario([ToolSpec(meanwhile)], script), mode)
        assert guarded.error is None
        assert [step["name"] for step in guarded.steps] == ["meanwhile"]
        assert beside[0].ran == expected.ran == ("send", "send")
        assert beside[0].seen == expected.seen
        assert beside[0].result == expected.result

    def test_guarding_leaves_the_original_tools_as_they_were(
        self, stage: Stage, mode: Mode
    ) -> None:
        ran: list[str] = []
        scenario = notes("a", "b")
        tools = stage.tools(scenario, mode, ran)
        before = stage.plain(scenario, mode, tools=tools)
        guarded = stage.play(scenario, mode, tools=tools)
        assert guarded.how == ["ran", "ran"]
        after = stage.plain(scenario, mode, tools=tools)
        assert (after.error, after.seen, after.result) == (None, before.seen, before.result)
        denied = stage.play(scenario, mode, tools=tools, replay="offline")
        assert denied.how == ["replayed", "replayed"]
        assert ran == ["send"] * 6

    def test_the_tools_are_plain_again_after_a_session_that_ended_badly(
        self, stage: Stage, mode: Mode
    ) -> None:
        ran: list[str] = []
        scenario = notes("a", "b")
        tools = stage.tools(scenario, mode, ran)
        before = stage.plain(scenario, mode, tools=tools)
        halted = stage.play(scenario, mode, tools=tools, gate=[ask_always])
        crashed = stage.play(notes("a", end=Crash("power cut")), mode, tools=tools, name="other")
        assert isinstance(halted.error, ApprovalRequired)
        assert crashed.error is not None
        ran.clear()
        after = stage.plain(scenario, mode, tools=tools)
        assert (after.error, after.seen, after.result) == (None, before.seen, before.result)
        assert ran == ["send", "send"]

    def test_two_sessions_at_once_do_not_mix(self, stage: Stage, mode: Mode) -> None:
        together = Barrier(2)

        def agent(own: str) -> Played:
            def meet(text: str) -> str:
                """Wait until the other agent is here too."""
                together.wait(PATIENCE)
                return f"{own}: {text}"

            script: list[Message] = [*([("meet", {"text": f"{own}{i}"})] for i in range(3)), own]
            played = stage.play(Scenario([ToolSpec(meet)], script), mode, name=own)
            if len(played.ran) < len(script) - 1:
                together.abort()  # it will not come again
            return played

        first, second = _at_once(lambda: agent("x"), lambda: agent("y"))
        for own, played in (("x", first), ("y", second)):
            check_own(own, played)

    @needs("asynchronous")
    def test_two_sessions_in_one_event_loop_do_not_mix(self, stage: Stage) -> None:
        async def agents() -> list[Played]:
            here: dict[str, int] = {"x": 0, "y": 0}
            playing = [stage.aplay(meeting(own, here), name=own) for own in here]
            return list(await asyncio.gather(*playing))

        for own, played in zip("xy", asyncio.run(agents()), strict=True):
            check_own(own, played)


def ask_always(step: StepView) -> Verdict:
    """Ask for approval of each call."""
    return Verdict.ask(f"may {step.name} run?")


def meeting(own: str, here: dict[str, int]) -> Scenario:
    """Return an agent whose tool waits for the other's tool (or forever)."""

    async def meet(text: str) -> str:
        """Wait until the other agent is here too."""
        here[own] += 1
        for _ in range(YIELDS):
            if min(here.values()) >= here[own]:
                break
            await asyncio.sleep(0)
        return f"{own}: {text}"

    script: list[Message] = [*([("meet", {"text": f"{own}{i}"})] for i in range(3)), own]
    return Scenario([ToolSpec(meet)], script)


def check_own(own: str, played: Played) -> None:
    """Check that an agent saw its own answers, and that its trace holds its own steps."""
    assert played.error is None
    assert played.result.text == own
    assert played.seen == [(f"{own}: {own}{i}",) for i in range(3)]
    assert [s["args"]["text"] for s in played.steps] == [f"{own}{i}" for i in range(3)]


def _at_once(*jobs: Callable[[], Played]) -> list[Played]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
