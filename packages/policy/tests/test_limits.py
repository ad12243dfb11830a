"""Limits: what they say of a call, what it takes, and what it gives back."""

import asyncio
import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Contract, Verdict
from rollcage.gate import StepView
from rollcage_policy import Limits, Meter, ModelPrice, Prices, Rate, Ticket

SECOND = 10**9


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now: Any = 0

    def __call__(self) -> int:
        if isinstance(self.now, Exception):
            raise self.now
        now: int = self.now
        return now

    def pass_(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def meter(
    *rules: dict[str, Any],
    clock: Callable[[], int] = lambda: 0,
    prices: dict[str, Any] | None = None,
    loops: dict[str, Any] | None = None,
) -> Meter:
    named = [{"id": f"limit-{number}", **rule} for number, rule in enumerate(rules)]
    data = {"rules": named} if loops is None else {"rules": named, "loops": loops}
    return Meter(Limits.of(data), Prices.model_validate(prices or {}), clock)


def call(name: str = "search", key: str = "k", **how: Any) -> StepView:
    contract = Contract(name=name, parameters={"type": "object"}, effect="read")
    return StepView(**{"kind": "tool", "contract": contract, "args": {}, "key": key, **how})


def decision(ticket: Ticket) -> str:
    return "allow" if ticket.verdict is None else ticket.verdict.decision


def passes(meter: Meter, view: StepView, **end: Any) -> bool:
    """Make a call and end it; whether it got through."""
    ticket = meter.take(view)
    paced = ticket.pace() if ticket.verdict is None else None
    through = ticket.verdict is None and paced is None
    meter.end(ticket, **{"made": through, **end})
    return through


def denial(ticket: Ticket) -> Verdict:
    assert ticket.verdict is not None
    assert ticket.verdict.decision == "deny"
    return ticket.verdict


# --- calls ---------------------------------------------------------------------------------------


def test_as_many_calls_pass_as_a_limit_says() -> None:
    counted = meter({"calls": 3, "remedy": "Use what you found."})
    assert [passes(counted, call()) for _ in range(5)] == [True, True, True, False, False]
    said = denial(counted.take(call()))
    assert (said.code, said.rule) == ("limit_calls", "limit-0")
    assert said.message == "this run may make 3 calls, and has made them. Use what you found."


def test_a_limit_of_none_lets_nothing_through() -> None:
    assert not passes(meter({"calls": 0}), call())
    assert not passes(meter({"seconds": 0}), call())


@pytest.mark.parametrize(
    ("per", "left"),
    [
        ("run", {("a", "ann"): False, ("a", "bob"): False, ("b", "ann"): False}),
        ("tool", {("a", "ann"): False, ("a", "bob"): False, ("b", "ann"): True}),
        ("agent", {("a", "ann"): False, ("a", "bob"): True, ("b", "ann"): False}),
    ],
)
def test_it_counts_over_the_run_or_each_tool_or_each_agent(
    per: str, left: dict[tuple[str, str], bool]
) -> None:
    for (name, agent), through in left.items():
        counted = meter({"calls": 1, "per": per})
        assert passes(counted, call("a", agent="ann"))
        assert passes(counted, call(name, agent=agent)) is through


def test_it_counts_only_what_it_is_about() -> None:
    counted = meter({"calls": 0, "tools": ["send_*", "pay"], "agents": ["a*"], "kinds": ["tool"]})
    assert not passes(counted, call("send_mail", agent="ann"))
    assert not passes(counted, call("pay", agent="ann"))
    assert passes(counted, call("Pay", agent="ann"))
    assert passes(counted, call("send_mail", agent="bob"))
    assert passes(counted, call("send_mail"))
    assert passes(counted, call("pay", kind="model", agent="ann"))
    said = denial(counted.take(call("pay", agent="ann")))
    assert said.reason == "this run may make 0 calls of send_*, pay, and has made them"


def test_the_verdict_names_whose_limit_it_is() -> None:
    tool = denial(meter({"calls": 0, "per": "tool"}).take(call("pay")))
    agent = denial(meter({"calls": 0, "per": "agent"}).take(call(agent="ann")))
    nameless = denial(meter({"calls": 0, "per": "agent"}).take(call()))
    own = denial(meter({"calls": 0, "reason": "enough"}).take(call()))
    assert [each.reason for each in (tool, agent, nameless, own)] == [
        "pay may make 0 calls, and has made them",
        "agent ann may make 0 calls, and has made them",
        "this agent may make 0 calls, and has made them",
        "enough",
    ]


def test_deny_is_over_ask_and_the_first_of_equals_counts() -> None:
    asks = {"calls": 0, "decision": "ask", "id": "asks"}
    rules = [asks, {**asks, "id": "asks too"}]
    assert meter(*rules).take(call()).verdict == Verdict(
        "ask",
        "this run may make 0 calls, and has made them",
        "limit_calls",
        "asks",
        "Finish with what you have.",
    )
    both = meter(*rules, {"calls": 0, "id": "denies"}, {"calls": 0, "id": "denies too"})
    assert denial(both.take(call())).rule == "denies"


@pytest.mark.parametrize(
    ("policy", "own", "together"),
    [
        ("allow", None, "policy"),
        ("allow", "ask", "limit"),
        ("allow", "deny", "limit"),
        ("ask", None, "policy"),
        ("ask", "ask", "policy"),
        ("ask", "deny", "limit"),
        ("deny", None, "policy"),
        ("deny", "ask", "policy"),
        ("deny", "deny", "policy"),
    ],
)
def test_policy_and_limits_together(policy: Any, own: str | None, together: str) -> None:
    rules = [] if own is None else [{"calls": 0, "decision": own, "id": "limit"}]
    ticket = meter(*rules).take(call())
    assert ticket.over(Verdict(policy, "said", "said", "policy")).rule == together


# --- many at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["calls", "concurrency", "rate", "cost"])
def test_of_fifty_threads_exactly_ten_pass(resource: str) -> None:
    limit = {"calls": 10, "concurrency": 10, "rate": "10/h", "cost": 1.0}[resource]
    counted = meter({resource: limit}, prices={"search": 0.1})
    together = threading.Barrier(50)

    def take(_: int) -> bool:
        together.wait()
        ticket = counted.take(call())
        return ticket.verdict is None and ticket.pace() is None

    with ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(take, range(50))) == 10


async def test_of_fifty_tasks_exactly_ten_are_in_it_at_once() -> None:
    counted = meter({"concurrency": 10})
    inside = most = through = 0

    async def one() -> None:
        nonlocal inside, most, through
        ticket = counted.take(call())
        if ticket.verdict is None:
            inside, through = inside + 1, through + 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
        counted.end(ticket, made=ticket.verdict is None)

    await asyncio.gather(*(one() for _ in range(50)))
    assert (most, through) == (10, 10)
    assert passes(counted, call())


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "made", "refused", "failed"]), st.integers(0, 30)),
        max_size=60,
    )
)
def test_whatever_comes_in_whatever_order_what_is_free_can_be_taken(
    acts: list[tuple[str, int]],
) -> None:
    counted = meter({"calls": 7, "concurrency": 3})
    open_: list[Ticket] = []
    made = 0
    for act, at in acts:
        if act == "take":
            ticket = counted.take(call())
            room = made + len(open_) < 7 and len(open_) < 3
            assert (ticket.verdict is None) is room
            if room:
                open_.append(ticket)
            else:
                counted.end(ticket, made=False)
        elif open_:
            ticket = open_.pop(at % len(open_))
            for _ in range(2):  # a second end says nothing
                counted.end(ticket, made=act != "refused", failed=act == "failed")
            made += act != "refused"
    assert counted.spent.calls == made + len(open_)


# --- what is given back --------------------------------------------------------------------------


def test_a_call_that_was_not_made_gives_everything_back(clock: Clock) -> None:
    counted = meter(
        {"calls": 1, "concurrency": 1, "cost": 0.5, "rate": "1/h"},
        clock=clock,
        prices={"search": 0.5},
        loops={"same": 1},
    )
    for _ in range(3):
        ticket = counted.take(call())
        assert ticket.verdict is None
        assert ticket.pace() is None
        counted.end(ticket, made=False)
        assert counted.spent == (0, 0, 0.0)
    assert passes(counted, call())
    assert not passes(counted, call())


def test_where_one_limit_denies_nothing_is_taken_of_the_others() -> None:
    counted = meter({"calls": 5, "id": "all"}, {"calls": 1, "tools": ["pay"], "id": "pay"})
    assert passes(counted, call("pay"))
    assert [passes(counted, call("pay")) for _ in range(9)] == [False] * 9
    assert [passes(counted, call()) for _ in range(5)] == [True] * 4 + [False]


@pytest.mark.parametrize(("failed", "through"), [("count", 2), ("free", 6)])
def test_a_call_that_failed_counts_unless_it_is_free(
    failed: str, through: int, clock: Clock
) -> None:
    for limit in ({"calls": 2}, {"rate": "2/h"}, {"cost": 0.2}):
        counted = meter({**limit, "failed": failed}, clock=clock, prices={"search": 0.1})
        results = [passes(counted, call(), failed=True) for _ in range(6)]
        assert sum(results) == through


def test_a_call_that_ends_leaves_its_place_to_another() -> None:
    counted = meter({"concurrency": 2, "per": "tool"})
    first, second = counted.take(call()), counted.take(call())
    said = denial(counted.take(call()))
    assert (said.code, said.remedy) == ("limit_concurrency", "Call it again when one has ended.")
    assert said.reason == "search may have 2 calls at once, and has them"
    assert counted.take(call("other")).verdict is None
    counted.end(first, made=True)
    assert counted.take(call()).verdict is None
    denial(counted.take(call()))
    counted.end(second, made=True, failed=True)
    assert counted.take(call()).verdict is None


def test_what_is_asked_about_is_taken_and_given_back_where_it_is_refused() -> None:
    counted = meter({"calls": 1, "decision": "ask"}, {"calls": 3, "id": "at most"})
    assert decision(counted.take(call())) == "allow"
    asked = [counted.take(call()), counted.take(call())]
    assert [decision(each) for each in asked] == ["ask", "ask"]
    assert decision(counted.take(call())) == "deny"
    counted.end(asked[0], made=False)
    assert decision(counted.take(call())) == "ask"


# --- time ----------------------------------------------------------------------------------------


def test_a_rate_is_kept_in_every_span_of_time(clock: Clock) -> None:
    counted = meter({"rate": "2/min", "per": "tool"}, clock=clock)
    assert [passes(counted, call()) for _ in range(3)] == [True, True, False]
    clock.pass_(59.999)
    ticket = counted.take(call())
    said = ticket.pace()
    assert said is not None
    assert said.message == (
        "no more than 2 calls of search may begin within 60 s. Call it again in 1 s."
    )
    assert said.code == "limit_rate"
    counted.end(ticket, made=False)
    clock.pass_(0.001)
    assert [passes(counted, call()) for _ in range(3)] == [True, True, False]
    assert passes(counted, call("other"))


@given(st.lists(st.integers(0, 40), max_size=60))
def test_no_span_of_time_holds_more_than_the_rate(waits: list[int]) -> None:
    clock = Clock()
    counted = meter({"rate": "3/10 s"}, clock=clock)
    began: list[int] = []
    for wait in waits:
        clock.pass_(wait / 10)
        room = sum(clock.now - at < 10 * SECOND for at in began) < 3
        assert passes(counted, call()) is room
        if room:
            began.append(clock.now)


def test_a_call_is_paced_once(clock: Clock) -> None:
    counted = meter({"rate": "2/min"}, clock=clock)
    ticket = counted.take(call())
    assert [ticket.pace(), ticket.pace(), ticket.pace()] == [None, None, None]
    assert passes(counted, call())
    assert not passes(counted, call())


def test_what_does_not_run_has_no_rate(clock: Clock) -> None:
    counted = meter({"rate": "1/h"}, clock=clock)
    for _ in range(5):
        ticket = counted.take(call())
        assert ticket.verdict is None
        counted.end(ticket, made=True)  # answered from the recording: it was never paced
    assert passes(counted, call())


def test_a_rate_that_asks_is_asked_about_once_it_is_reached(clock: Clock) -> None:
    counted = meter({"rate": "1/h", "decision": "ask"}, clock=clock)
    early = counted.take(call())
    assert passes(counted, call())
    asked = counted.take(call())
    assert decision(asked) == "ask"
    assert asked.pace() is None  # it was approved
    assert early.pace() is not None  # nobody was asked about this one, and there is no room now


def test_calls_begin_within_the_time_of_the_run(clock: Clock) -> None:
    counted = meter({"seconds": 60}, clock=clock)
    clock.pass_(59)
    assert passes(counted, call())
    clock.pass_(1)
    said = denial(counted.take(call()))
    assert (said.code, said.reason) == ("limit_time", "this run had 60 s, and the time is up")


def test_the_time_of_a_tool_begins_with_its_first_call(clock: Clock) -> None:
    counted = meter({"seconds": 0.5, "per": "tool"}, clock=clock)
    clock.pass_(100)
    assert passes(counted, call())
    clock.pass_(0.4)
    assert passes(counted, call())
    clock.pass_(0.1)
    assert not passes(counted, call())
    assert passes(counted, call("other"))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (OSError("away"), "the clock raised OSError"),
        (9 * SECOND, "the clock went backwards"),
        (10.5 * SECOND, "the clock returned no time"),
        (None, "the clock returned no time"),
        (True, "the clock returned no time"),
    ],
)
@pytest.mark.parametrize("limit", [{"rate": "9/s"}, {"seconds": 60}])
def test_a_clock_that_fails_denies_what_it_is_needed_for(
    clock: Clock, limit: dict[str, Any], broken: Any, said: str
) -> None:
    counted = meter({**limit, "tools": ["timed"]}, clock=clock)
    clock.now = 10 * SECOND
    assert passes(counted, call("timed"))
    ticket = counted.take(call("timed"))
    clock.now = broken
    found = denial(counted.take(call("timed")))
    assert (found.code, found.reason) == ("clock_error", f"the clock can't be read: {said}")
    if "rate" in limit:
        paced = ticket.pace()
        assert paced is not None
        assert paced.code == "clock_error"
    assert passes(counted, call("other"))
    clock.now = 10 * SECOND
    assert passes(counted, call("timed"))


def test_a_clock_that_fails_at_the_opening_denies(clock: Clock) -> None:
    clock.now = OSError("away")
    counted = meter({"seconds": 60}, {"seconds": 60, "per": "tool"}, clock=clock)
    clock.now = 0
    assert denial(counted.take(call())).code == "clock_error"


def test_without_a_limit_of_time_no_clock_is_looked_at(clock: Clock) -> None:
    clock.now = OSError("away")
    assert passes(meter({"calls": 1, "cost": 1, "concurrency": 1}, clock=clock), call())


# --- cost and tokens -----------------------------------------------------------------------------

MODELS = {"m*": {"input": 3.0, "output": 15.0}, "mini-*": {"input": 0.15, "output": 0.6}}
USED = {"input_tokens": 1000, "output_tokens": 200}


def asked(name: str = "m1") -> StepView:
    return call(name, kind="model")


def test_a_price_is_paid_exactly() -> None:
    counted = meter({"cost": 1.0}, prices={"search": 0.1})
    assert [passes(counted, call()) for _ in range(11)] == [True] * 10 + [False]
    assert counted.spent.cost == 1.0
    said = denial(counted.take(call()))
    assert (said.code, said.reason) == (
        "limit_cost",
        "this run may spend 1; 1 is spent, and this call costs 0.1",
    )
    assert passes(counted, call("free"))


def test_what_a_model_used_is_charged_at_its_end() -> None:
    counted = meter({"cost": 0.01}, prices={"models": MODELS})
    assert passes(counted, asked(), usage=USED)
    assert counted.spent == (1, 1200, 0.006)
    assert passes(counted, asked("mini-2"), usage=USED)
    assert counted.spent == (2, 2400, 0.00627)
    assert passes(counted, asked(), usage=USED)
    said = denial(counted.take(asked()))
    assert said.reason == "this run may spend 0.01; 0.01227 is spent, and this call costs more"


def test_tokens_are_counted_whatever_became_of_the_call() -> None:
    counted = meter({"tokens": 3000})
    assert passes(counted, asked(), usage=USED)
    assert passes(counted, asked(), usage=USED, failed=True)
    assert passes(counted, asked(), usage=USED)
    said = denial(counted.take(asked()))
    assert (said.code, said.reason) == (
        "limit_tokens",
        "this run may use 3000 tokens; 3600 are used",
    )
    denial(counted.take(call()))  # its tools, too: the budget is that of the run


def test_what_a_refused_call_claims_to_have_used_is_not_charged() -> None:
    counted = meter({"tokens": 1000})
    assert passes(counted, asked(), usage=USED, made=False)
    assert counted.spent == (0, 0, 0.0)


def test_usage_of_hostile_data_takes_nothing_back() -> None:
    counted = meter({"tokens": 1000}, prices={"models": MODELS})
    assert passes(counted, asked(), usage={"input_tokens": -5000, "output_tokens": 7})
    assert counted.spent.tokens == 7


def test_a_model_without_a_price_can_spend_nothing() -> None:
    counted = meter({"cost": 5}, prices={"models": {"m*": MODELS["m*"]}})
    said = denial(counted.take(asked("other")))
    assert said.code == "price_unknown"
    assert said.remedy == 'The policy needs a price: [prices.models."other"].'
    free = meter({"cost": 0}, prices={"models": {"*": {"input": 0, "output": 0}}})
    assert passes(free, asked("local"))
    assert passes(free, asked("local"))


@pytest.mark.parametrize("limit", [{"tokens": 9}, {"cost": 1}])
def test_a_model_that_does_not_say_what_it_used_is_asked_once(limit: dict[str, Any]) -> None:
    counted = meter(limit, prices={"models": MODELS})
    assert passes(counted, asked(), failed=True)  # of a failure, nobody expects it
    assert passes(counted, asked())
    said = denial(counted.take(asked()))
    assert said.code == "usage_unknown"
    assert said.reason.startswith("m1 does not report how many tokens it used")
    assert passes(counted, call())


def test_of_several_prices_the_nearest_counts() -> None:
    prices = Prices.model_validate(
        {"*": 1, "send_*": 2, "send_s*": 3, "send_sms": 4, "models": MODELS}
    )
    names = ["look", "send_mail", "send_sos", "send_sms"]
    assert [prices.of("tool", name).call // 10**12 for name in names] == [1, 2, 3, 4]
    assert prices.of("model", "mini-1")[1:] == (150_000, 600_000)
    assert Prices.model_validate({"calls": {"a": 1}, "b": 2}).calls == {"a": 1, "b": 2}
    assert Prices.model_validate({"calls": 1, "b": 2}).calls == {"calls": 1, "b": 2}
    assert Prices(models={"m": ModelPrice(input=1, output=2)}).models["m"].output == 2


@pytest.mark.parametrize(
    "data",
    [
        {"a": -1},
        {"a": math.inf},
        {"a": math.nan},
        {"a": "1"},
        {"a": True},
        {"models": {"m": 1}},
        {"models": {"m": {"input": 1}}},
        {"models": {"m": {"input": 1, "output": 1, "more": 1}}},
        [],
    ],
)
def test_prices_that_are_none_are_refused(data: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        Prices.model_validate(data)


# --- loops ---------------------------------------------------------------------------------------


def run(counted: Meter, keys: str, **how: Any) -> str:
    """Make these calls, one letter each; those that got through."""
    return "".join(key for key in keys if passes(counted, call(f"tool_{key}", key, **how)))


@pytest.mark.parametrize(
    ("loops", "keys", "through"),
    [
        ({"same": 1}, "aab", "ab"),
        ({"same": 3}, "aaaa", "aaa"),
        ({"same": 3}, "aabaaab", "aabaaab"),
        ({"same": 3}, "aaaaabaaaa", "aaabaaa"),
        ({"same": 2, "within": 4}, "abaab", "abab"),
        ({"same": 2, "within": 4}, "abacda", "abacda"),
        ({"same": 2, "within": 4}, "abaaaca", "abaca"),
        ({"alternating": 2}, "abababbaabab", "abab"),
        ({"alternating": 2}, "xababc", "xababc"),
        ({"alternating": 2}, "xababac", "xababc"),
        ({"alternating": 2}, "ababaacab", "ababcab"),
        ({"alternating": 2}, "abcabcabc", "abcabcabc"),
        ({"alternating": 2}, "aaaaaa", "aaaaaa"),
        ({"alternating": 1}, "aba", "ab"),
        ({"same": 2, "alternating": 2}, "aaabababx", "aababx"),
        ({"same": 2, "ignore": ["tool_a"]}, "aaaabbb", "aaaabb"),
    ],
)
def test_circles(loops: dict[str, Any], keys: str, through: str) -> None:
    assert run(meter(loops=loops), keys) == through


def test_what_is_reported_of_a_circle() -> None:
    row, within = meter(loops={"same": 2}), meter(loops={"same": 2, "within": 5})
    turns = meter(loops={"alternating": 2, "decision": "ask", "id": "ping-pong"})
    for counted, keys in ((row, "aa"), (within, "aba"), (turns, "abab")):
        run(counted, keys)
    said = [each.take(call("tool_a", "a")).verdict for each in (row, within, turns)]
    assert [(each.decision, each.code, each.rule) for each in said if each] == [
        ("deny", "loop_same", "loops"),
        ("deny", "loop_same", "loops"),
        ("ask", "loop_alternating", "ping-pong"),
    ]
    assert [each.reason for each in said if each] == [
        "tool_a was called with these very arguments 2 times in a row",
        "tool_a was called with these very arguments 2 times within the last 4 calls",
        "tool_a and tool_b have taken turns 2 times with the same arguments",
    ]


def test_agents_branches_and_models_do_not_hide_each_others_circles() -> None:
    counted = meter(loops={"same": 2})
    places = [{}, {"agent": "ann"}, {"branch": "left"}, {"kind": "model"}]
    through = [run(counted, "a", **place) for _ in range(3) for place in places]
    assert through == ["a"] * 8 + [""] * 4


def test_one_placed_call_that_is_made_again_is_no_circle() -> None:
    counted = meter(loops={"same": 2, "alternating": 1})
    for _ in range(9):
        ticket = counted.take(call(), place=("", 1, 0))
        assert ticket.verdict is None
        counted.end(ticket, made=True, failed=True)
    assert counted.take(call(), place=("", 1, 1)).verdict is None
    assert denial(counted.take(call(), place=("", 2, 0))).code == "loop_same"
    assert counted.take(call(key="other"), place=("", 1, 0)).verdict is None


def test_of_parallel_calls_that_are_the_same_so_many_pass() -> None:
    counted = meter(loops={"same": 3})
    with ThreadPoolExecutor(20) as pool:
        tickets = list(pool.map(lambda _: counted.take(call()), range(20)))
    assert sum(ticket.verdict is None for ticket in tickets) == 3


def test_what_was_not_made_is_forgotten() -> None:
    counted = meter(loops={"same": 2})
    run(counted, "a")
    for _ in range(5):
        counted.end(counted.take(call("tool_a", "a")), made=False)
    assert run(counted, "aa") == "a"


def test_a_call_without_its_key_is_denied() -> None:
    said = denial(meter(loops={"same": 2}).take(call(key="")))
    assert (said.code, said.rule) == ("limit_error", "limits")


def test_the_memory_of_circles_is_bounded() -> None:
    counted = meter(loops={"same": 2}, prices={})
    for number in range(10_000):
        assert passes(counted, call(branch=f"b{number}", agent=f"a{number}"))
    assert run(counted, "aaa") == "aa"


# --- what can be declared ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/min", (10, 60)),
        ("1/s", (1, 1)),
        (" 100 / 15 min ", (100, 900)),
        ("1000/day", (1000, 86400)),
        ("5/Hour", (5, 3600)),
        ("7/30s", (7, 30)),
    ],
)
def test_rates(text: str, rate: tuple[int, int]) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({}, "limits nothing"),
        ({"calls": -1}, "greater than or equal to 0"),
        ({"calls": True}, "valid integer"),
        ({"calls": 1.0}, "valid integer"),
        ({"calls": "1"}, "valid integer"),
        ({"seconds": math.nan}, "finite"),
        ({"cost": math.inf}, "finite"),
        ({"concurrency": 0}, "greater than or equal to 1"),
        ({"rate": "often"}, "'often' is not a rate"),
        ({"rate": "10/fortnight"}, "is not a rate"),
        ({"rate": "0/min"}, "allows nothing"),
        ({"rate": "1/0 s"}, "allows nothing"),
        ({"rate": "1/min/min"}, "is not a rate"),
        ({"calls": 1, "tools": []}, "at least 1 item"),
        ({"calls": 1, "tools": [""]}, "at least 1 character"),
        ({"calls": 1, "tools": "a*"}, "valid tuple"),
        ({"calls": 1, "per": "day"}, "'run', 'tool' or 'agent'"),
        ({"calls": 1, "kinds": ["undo"]}, "'tool' or 'model'"),
        ({"calls": 1, "decision": "allow"}, "'deny' or 'ask'"),
        ({"calls": 1, "clals": 2}, "Extra inputs"),
        ({"calls": 1, "id": ""}, "at least 1 character"),
    ],
)
def test_a_limit_that_is_none_is_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        Limits.of({"rules": [{"id": "a", **rule}]})


@pytest.mark.parametrize(
    ("loops", "said"),
    [
        ({}, "need same="),
        ({"within": 3}, "need same="),
        ({"same": 3, "within": 3}, "has to exceed it"),
        ({"alternating": 2, "within": 3}, "has to exceed it"),
        ({"same": 0}, "greater than or equal to 1"),
        ({"same": 10**9}, "less than or equal"),
    ],
)
def test_loops_that_are_none_are_refused(loops: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        Limits.of({"loops": loops})


def test_two_limits_of_one_name_are_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="two limits are called 'loops'"):
        Limits.of({"rules": [{"id": "loops", "calls": 1}], "loops": {"same": 1}})


def test_limits_survive_their_own_data() -> None:
    limits = Limits.of(
        {"rules": [{"id": "a", "rate": "1/s", "tools": ["x"]}], "loops": {"same": 2}}
    )
    assert Limits.of(limits.model_dump(mode="json")) == limits
    assert limits
    assert not Limits()


def test_a_view_as_it_is_tried_out_can_be_metered() -> None:
    view = dataclasses.replace(call(), run=None)
    assert passes(meter({"calls": 1}), view)
