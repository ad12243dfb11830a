"""Guards, which run before and after a call, and the interfaces of policies and facades.

A guard is a rule, or an object with one or more of three methods: `screen` checks the tool before
its arguments are bound, `decide` the call, and `settled` is notified when it has ended. Their
verdicts are combined in `verdict`: deny over ask over allow. A guard that fails denies.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, Protocol, cast, runtime_checkable

from rollcage.contract.contract import Contract
from rollcage.errors import SessionError, ToolRefused
from rollcage.gate.labels import Labels
from rollcage.gate.verdict import Rule, StepView, Verdict, rule_name
from rollcage.store.protocol import Store

__all__ = [
    "Decides", "FacadeGuard", "Given", "Guard", "Guards", "NamedFacade", "PolicyGuard", "Screens",
    "Settled", "Settles", "Spent", "TakenOfLimits", "WithLimits", "guards_of", "screened",
    "user_input_here",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """How a call ended; what a guard's `settled` receives.

    Attributes:
        view: the call, as `decide` saw it.
        verdict: the combined verdict of all that decide.
        status: `ok`, `error`, `unknown` or `not_started`, as the trace has it; `blocked`: it was
            denied, or cut off before anything of it happened.
        replayed: whether a recorded step was replayed for it.
        outcome: as the trace holds it; empty if the call was `blocked`.
        usage: the tokens that a model call used, if it reports them.
    """

    view: StepView
    verdict: Verdict
    status: Literal["ok", "error", "unknown", "not_started", "blocked"]
    replayed: bool = False
    outcome: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    usage: Mapping[str, int] | None = None


@runtime_checkable
class Screens(Protocol):
    """Checks a tool before the arguments of a call of it are bound."""

    def screen(self, contract: Contract) -> Verdict | None:
        """A denial if nothing of the tool may run, its validators included; None if it may."""
        ...


@runtime_checkable
class Decides(Protocol):
    """Decides on a call before anything of it happens."""

    def decide(self, view: StepView) -> Verdict | None:
        """As a rule does; it may be called more than once for one call."""
        ...


@runtime_checkable
class Settles(Protocol):
    """Is notified how each call that was decided on ended."""

    def settled(self, details: Settled) -> None:
        """If this raises, the guard has lost count: every later call is denied."""
        ...


Guard = Rule | Screens | Decides | Settles
"""What `Session(gate=[…])` takes: a rule, or an object with `screen`, `decide` or `settled`."""


# --- a policy's interface ------------------------------------------------------------------------


class Spent(NamedTuple):
    """What a run has used so far, replayed steps included; `cost` is by the policy's prices."""

    calls: int
    tokens: int
    cost: float


class TakenOfLimits(Protocol):
    """What a call has reserved of the limits."""

    @property
    def verdict(self) -> Verdict | None:
        """The limits' verdict on the call; None: it is within all of them."""
        ...

    @property
    def paced(self) -> bool:
        """Whether `pace` has to be called: a limit bounds how many calls may begin."""
        ...

    def over(self, verdict: Verdict) -> Verdict:
        """The combined verdict of a policy and the limits."""
        ...

    def pace(self) -> Verdict | None:
        """Called right before the call runs: the rate limits' verdict; None: it may run."""
        ...

    def end(
        self, *, made: bool, failed: bool = False, usage: Mapping[str, int] | None = None
    ) -> None:
        """The call has ended; what it did not use is released."""
        ...


class WithLimits(Protocol):
    """Counts the calls of one session against the limits of its policy. Thread-safe."""

    @property
    def spent(self) -> Spent:
        """What was used so far."""
        ...

    @property
    def limits_nothing(self) -> bool:
        """Whether there is neither a limit nor a price: then calls only need to be tallied."""
        ...

    def tally(self, calls: int, usage: Mapping[str, int] | None = None) -> None:
        """Count calls, and the usage of models, if nothing is limited; -1: it was not made."""
        ...

    def take(self, view: StepView, place: Hashable = None) -> TakenOfLimits:
        """Reserve what a call needs of each limit: all of it, or nothing if a limit denies."""
        ...


class PolicyGuard(ABC):
    """A policy, as a session uses it: `rollcage_policy.Policy` is one. It never changes.

    Attributes:
        name: its name, from its file.
        digest: the identity of its content (64 hex digits).
        mode: `shadow` decides and records, and blocks nothing.
        strict: whether arguments that would have to be coerced are refused.
    """

    __slots__ = ()

    name: str
    digest: str
    mode: Literal["enforce", "shadow"]
    strict: bool

    @abstractmethod
    def decide(self, view: StepView) -> Verdict:
        """The verdict on a call."""

    def foregone(self, contract: Contract, kind: str, agent: str) -> Verdict | None:
        """The verdict on each such call, whatever its arguments; None: `decide` has to be called.

        Args:
            contract: the tool's or model's contract.
            kind: `tool` or `model`.
            agent: the agent's name; empty if the framework does not provide it.
        """
        del contract, kind, agent
        return None

    @abstractmethod
    def metered(self, clock: Callable[[], int]) -> WithLimits:
        """A meter of its limits, for one session; `clock` is monotonic, in ns."""

    @abstractmethod
    def labelling(self) -> Labels | None:
        """The tracker of labels for one session; None if labels are not tracked."""

    @property
    @abstractmethod
    def approval_terms(self) -> tuple[float, frozenset[str] | None]:
        """How many seconds an approval counts, and who may approve; None: all but the requester."""

    @abstractmethod
    def differs(self, other: PolicyGuard) -> str:
        """What of the other policy can't take effect in an open session; empty if all can."""


# --- a facade's interface ------------------------------------------------------------------------


class FacadeGuard(ABC):
    """The tools that an agent is granted, as of the opening of its session.

    Attributes:
        name: its name.
        digest: the identity of what it grants (64 hex digits).
    """

    name: str
    digest: str

    @abstractmethod
    def check(
        self,
        contract: Contract,
        body: Callable[..., Any] | None = None,
        *,
        kind: str = "tool",
        undo: bool = False,
    ) -> Verdict | None:
        """A denial if a call must not be made; None if it may.

        Args:
            contract: the tool's contract.
            body: the function that would be called, if the caller knows it.
            kind: `tool` or `model`.
            undo: whether the call undoes something: any tool that was ever approved may do that.
        """

    @abstractmethod
    def refusal(self, contract: Contract, verdict: Verdict, *, kind: str = "tool") -> ToolRefused:
        """The error for a caller that tries to give an agent this tool, with what to do."""

    @abstractmethod
    def as_data(self) -> dict[str, Any]:
        """The form in which a trace holds it."""

    @abstractmethod
    def within(self, outer: FacadeGuard) -> FacadeGuard:
        """The facade of a session inside another one: the tools that both grant."""


class NamedFacade(ABC):
    """A facade given by its name: `rollcage_governance.Facade` is one."""

    name: str

    @abstractmethod
    def taken(self, store: Store) -> FacadeGuard:
        """The facade as a store's registry has it now.

        Raises:
            FacadeMissing: the registry has none of this name.
        """


# --- a session's guards --------------------------------------------------------------------------

_FAILED: Final = "rule_error"

user_input_here: Final[ContextVar[tuple[str, ...] | None]] = ContextVar(
    "rollcage.user_input", default=None
)
"""The user input while guards decide, as `Session(user_input=…)` got it; else None."""


Given = Guard | PolicyGuard | NamedFacade
"""An entry of a session's `gate=`: a guard, a policy or a facade."""


class Guards(NamedTuple):
    """A session's guards by what they do, each in the order in which they were given.

    Attributes:
        policy: the policy among them, if any.
        facade: the facade among them, if any.
        screens: those that screen.
        decides: those that decide, as rules; None stands for the policy.
        settles: those that are notified how calls ended.
        names: the names of all but policy and facade, for the trace.
    """

    policy: PolicyGuard | None
    facade: NamedFacade | None
    screens: tuple[Screens, ...]
    decides: tuple[Rule | None, ...]
    settles: tuple[Settles, ...]
    names: tuple[str, ...]


def guards_of(given: Iterable[Given]) -> Guards:
    """Sort a session's guards by what they do.

    Raises:
        SessionError: two policies or two facades, or something that is not a guard.
    """
    everything = tuple(given)
    policies = [each for each in everything if isinstance(each, PolicyGuard)]
    facades = [each for each in everything if isinstance(each, NamedFacade)]
    if len(policies) > 1:
        one, other, *_ = policies
        raise SessionError(
            f"a session has one policy, not {one.name!r} and {other.name!r} too: include the file "
            f'of one in the other (include = ["…"])'
        )
    if len(facades) > 1:
        first, second, *_ = facades
        raise SessionError(
            f"a session has one facade, not {first.name!r} and {second.name!r} too: define one "
            f"that gives the packs of both"
        )
    others = [each for each in everything if not isinstance(each, PolicyGuard | NamedFacade)]
    for each in others:
        if isinstance(each, type) or not (callable(each) or _is_guard(each)):
            raise SessionError(
                f"{each!r} is not a guard: gate= takes policies, facades, functions of a StepView, "
                f"and objects with one or more of screen, decide and settled"
            )
    return Guards(
        policies[0] if policies else None,
        facades[0] if facades else None,
        tuple(each for each in others if isinstance(each, Screens)),
        tuple(_rules(everything)),
        tuple(each for each in others if isinstance(each, Settles)),
        tuple(rule_name(cast("Rule", each)) for each in others),
    )


def _is_guard(given: object) -> bool:
    return isinstance(given, Screens | Decides | Settles)


def _rules(given: Iterable[Given]) -> Iterable[Rule | None]:
    for each in given:
        if isinstance(each, PolicyGuard):
            yield None
        elif isinstance(each, Decides):
            yield each.decide
        elif not isinstance(each, NamedFacade) and not _is_guard(each):
            yield cast("Rule", each)


def screened(contract: Contract, screens: Iterable[Screens]) -> Verdict | None:
    """The first denial of a tool by a screen; None if it may be called."""
    for each in screens:
        try:
            verdict = cast("object", each.screen(contract))  # not trusted to have its declared type
            denied = (
                isinstance(verdict, Verdict) and verdict.is_whole and verdict.decision == "deny"
            )
        except Exception as error:  # noqa: BLE001 - whatever it raises, the call must not run
            verdict, denied = (
                Verdict("deny", f"a screen failed: {type(error).__name__}", _FAILED),
                True,
            )
        if verdict is None or (isinstance(verdict, Verdict) and verdict.decision == "allow"):
            continue
        if not isinstance(verdict, Verdict) or not denied:
            verdict = Verdict("deny", "a screen returned neither a denial nor None", "rule_invalid")
        name = rule_name(cast("Rule", each))
        return verdict if verdict.rule else dataclasses.replace(verdict, rule=name)
    return None
