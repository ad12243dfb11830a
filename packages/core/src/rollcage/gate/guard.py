"""What stands before and after a call: guards, and what a session asks of a policy and a facade.

A guard is a rule, or an object with one or more of three methods: `screen` looks at what is to be
called before its arguments are bound, `decide` at the call, `settled` when it has ended. What
they say is combined in `verdict`: deny over ask over allow. One that fails denies.
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
    "Settled", "Settles", "Spent", "TakenOfLimits", "WithLimits", "guards_of", "said_here",
    "screened",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """How a call ended that was decided on; what a guard's `settled` receives.

    Attributes:
        view: the call, as `decide` was shown it.
        verdict: what was said of it by all that decide.
        status: `ok`, `error`, `unknown` or `not_started`, as the trace has it; `blocked`: it was
            denied, or cut off before anything of it happened.
        replayed: whether a recorded step stands for it.
        outcome: as the trace holds it; empty where it is `blocked`.
        usage: the tokens that a model call used, where it says so.
    """

    view: StepView
    verdict: Verdict
    status: Literal["ok", "error", "unknown", "not_started", "blocked"]
    replayed: bool = False
    outcome: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    usage: Mapping[str, int] | None = None


@runtime_checkable
class Screens(Protocol):
    """Looks at what is to be called, before its arguments are bound."""

    def screen(self, contract: Contract) -> Verdict | None:
        """Why nothing of it may be called, its validators included; None where it may."""
        ...


@runtime_checkable
class Decides(Protocol):
    """Looks at a call, before anything of it happens."""

    def decide(self, view: StepView) -> Verdict | None:
        """As a rule: it may be asked more than once of one call."""
        ...


@runtime_checkable
class Settles(Protocol):
    """Is notified how each call ended that was decided on."""

    def settled(self, details: Settled) -> None:
        """Where this raises, the guard has lost count: every later call is denied."""
        ...


Guard = Rule | Screens | Decides | Settles
"""What `Session(gate=[…])` takes: a rule, or an object with `screen`, `decide` or `settled`."""


# --- what a policy is to a session ---------------------------------------------------------------


class Spent(NamedTuple):
    """What a run has used up so far, what it replayed included; `cost` by the policy's prices."""

    calls: int
    tokens: int
    cost: float


class TakenOfLimits(Protocol):
    """What a call has taken of the limits."""

    @property
    def verdict(self) -> Verdict | None:
        """What the limits say of the call; None: there is room for it."""
        ...

    @property
    def paced(self) -> bool:
        """Whether `pace` has to be asked: a limit says how many calls may begin."""
        ...

    def over(self, verdict: Verdict) -> Verdict:
        """What a policy and the limits say together."""
        ...

    def pace(self) -> Verdict | None:
        """Asked where the call will run: what the rates say of it; None: it may."""
        ...

    def end(
        self, *, made: bool, failed: bool = False, usage: Mapping[str, int] | None = None
    ) -> None:
        """The call is over; what it did not use up is given back."""
        ...


class WithLimits(Protocol):
    """Counts the calls of one session against the limits of its policy. Thread-safe."""

    @property
    def spent(self) -> Spent:
        """What was used up so far."""
        ...

    @property
    def limits_nothing(self) -> bool:
        """Whether there is neither a limit nor a price: then calls need only be tallied."""
        ...

    def tally(self, calls: int, usage: Mapping[str, int] | None = None) -> None:
        """Count calls where nothing is limited, and what models used; -1: it was not made."""
        ...

    def take(self, view: StepView, place: Hashable = None) -> TakenOfLimits:
        """Take what a call needs of each limit: all of it, or nothing where that denies."""
        ...


class PolicyGuard(ABC):
    """A policy, as a session knows it: `rollcage_policy.Policy` is one. It never changes.

    Attributes:
        name: what its file calls it.
        digest: the identity of all that it says (64 hex digits).
        mode: `shadow` decides and records, and holds nothing up.
        strict: arguments that would have to be coerced are refused.
    """

    __slots__ = ()

    name: str
    digest: str
    mode: Literal["enforce", "shadow"]
    strict: bool

    @abstractmethod
    def decide(self, view: StepView) -> Verdict:
        """What a call gets."""

    def foregone(self, contract: Contract, kind: str, agent: str) -> Verdict | None:
        """What each such call gets, whatever its arguments are; None: `decide` has to look at it.

        Args:
            contract: of the tool or model.
            kind: `tool` or `model`.
            agent: the agent's name; empty where the framework does not tell.
        """
        del contract, kind, agent
        return None

    @abstractmethod
    def metered(self, clock: Callable[[], int]) -> WithLimits:
        """Its limits, for one session; `clock` is monotonic, in ns."""

    @abstractmethod
    def labelling(self) -> Labels | None:
        """How labels follow in one session; None where they don't."""

    @property
    @abstractmethod
    def approval_terms(self) -> tuple[float, frozenset[str] | None]:
        """For how many seconds an approval counts, and who may approve; None: anybody else."""

    @abstractmethod
    def differs(self, other: PolicyGuard) -> str:
        """What of the other one can't take effect in a session that has begun; else empty."""


# --- what a facade is to a session ---------------------------------------------------------------


class FacadeGuard(ABC):
    """Which tools an agent gets, as it stood when its session was opened.

    Attributes:
        name: its name.
        digest: the identity of what it gives (64 hex digits).
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
        """Why a call must not be made; None where it may.

        Args:
            contract: the tool's.
            body: the function that would be called, where the caller knows it.
            kind: `tool` or `model`.
            undo: it undoes something: whatever was approved once may do that.
        """

    @abstractmethod
    def refusal(self, contract: Contract, verdict: Verdict, *, kind: str = "tool") -> ToolRefused:
        """The error that says so to whoever wants to give an agent this tool, and what to do."""

    @abstractmethod
    def as_data(self) -> dict[str, Any]:
        """The form in which a trace holds it."""

    @abstractmethod
    def within(self, outer: FacadeGuard) -> FacadeGuard:
        """What a session inside another one gets: what both give."""


class NamedFacade(ABC):
    """A facade by its name: `rollcage_governance.Facade` is one."""

    name: str

    @abstractmethod
    def taken(self, store: Store) -> FacadeGuard:
        """As it stands in a store's registry now.

        Raises:
            FacadeMissing: there is none of this name.
        """


# --- a session's guards --------------------------------------------------------------------------

_FAILED: Final = "rule_error"

said_here: Final[ContextVar[tuple[str, ...] | None]] = ContextVar("rollcage.said", default=None)
"""The user's own words while guards decide, as `Session(said=…)` got them; else None."""


Given = Guard | PolicyGuard | NamedFacade
"""What a session is given: its guards, its policy and its facade among them."""


class Guards(NamedTuple):
    """A session's guards by what they do, each in the order in which they were given.

    Attributes:
        policy: the one among them.
        facade: the one among them.
        screens: those that screen.
        decides: those that decide, as rules; None stands for the policy.
        settles: those that are notified how calls ended.
        names: those of all but policy and facade, for the trace.
    """

    policy: PolicyGuard | None
    facade: NamedFacade | None
    screens: tuple[Screens, ...]
    decides: tuple[Rule | None, ...]
    settles: tuple[Settles, ...]
    names: tuple[str, ...]


def guards_of(given: Iterable[Given]) -> Guards:
    """Sort what a session was given.

    Raises:
        SessionError: there are two policies or facades among them, or something that is no guard.
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
                f"{each!r} is no guard: gate= takes policies, facades, functions of a StepView, "
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
    """Why a tool must not be called at all, by the first that says so; None where it may be."""
    for each in screens:
        try:
            said = cast("object", each.screen(contract))  # what it says, whatever its type says
            denied = isinstance(said, Verdict) and said.is_whole and said.decision == "deny"
        except Exception as error:  # noqa: BLE001 - whatever it raises, the call must not run
            said, denied = (
                Verdict("deny", f"a screen failed: {type(error).__name__}", _FAILED),
                True,
            )
        if said is None or (isinstance(said, Verdict) and said.decision == "allow"):
            continue
        if not isinstance(said, Verdict) or not denied:
            said = Verdict("deny", "a screen gave back neither a denial nor None", "rule_invalid")
        name = rule_name(cast("Rule", each))
        return said if said.rule else dataclasses.replace(said, rule=name)
    return None
