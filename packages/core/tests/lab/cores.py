"""Sessions with policies, facades and rules, for tests of the gate."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import rollcage
from rollcage.session.options import Clock

__all__ = ["Core"]


class Core:
    """Sessions that are decided by policies, facades and rules, as tests ask for them.

    Args:
        folder: the folder of its store.
    """

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"

    def session(
        self,
        name: str,
        policy: Any = None,
        *,
        rules: Any = (),
        user_input: Any = None,
        clock: Clock | None = None,
        facade: str | None = None,
        enforce: str = "off",
        **how: Any,
    ) -> Any:
        from rollcage_policy import Policy, UserInput

        if isinstance(policy, (str, os.PathLike)):
            policy = Policy.load(Path(policy))
        gate: list[Any] = [] if policy is None else [policy]
        gate += rules
        if facade is not None:
            from rollcage_governance import Facade

            gate.insert(0, Facade(facade))
        if user_input is not None:
            gate.append(UserInput(*([user_input] if isinstance(user_input, str) else user_input)))
        if enforce != "off":
            from rollcage_policy import Permissions

            gate.append(Permissions(enforce))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - it refuses other words
        if how.pop("secrets", "") == "detected":
            from rollcage_policy import DetectedSecrets

            how["stages"] = [DetectedSecrets()]
        more: dict[str, Any] = {} if clock is None else {"clock": clock}
        more |= {name: how.pop(name) for name in ("strict", "types") if name in how}
        if "unguarded" in how:
            more["unguarded"] = how.pop("unguarded")
        options = rollcage.Options(**more)
        return rollcage.Session(name, store=self.store, gate=gate, options=options, **how)

    def lines(self, run: str) -> list[dict[str, Any]]:
        """The lines of a run."""
        return [orjson.loads(line) for line in rollcage.open_store(self.store).read(run)]

    def reload(self, session: Any, policy: Any) -> Any:
        """Load another policy into an open session."""
        from rollcage_policy import reload_policy

        return reload_policy(session, policy)

    def spent(self, session: Any) -> Any:
        """What a session has used."""
        from rollcage_policy import spent

        return spent(session)

    def undo_run(self, run: str) -> Any:
        """Take back what a run has done."""
        return rollcage.undo_run(self.store, run)

    def stop(self, run: str) -> None:
        """Order a run to stop."""
        from rollcage.stages import orders

        orders.stop_run(self.store, run, by="ann", reason="enough")

    def lift(self, run: str) -> None:
        """Lift that."""
        from rollcage.stages import orders

        orders.lift_order(self.store, run)

    def facade(self, session: Any) -> Any:
        """The facade of an open session; None if it has none."""
        return next((each.facade for each in session.gate.entries if hasattr(each, "facade")), None)

    def described(self, lines: list[dict[str, Any]], what: str) -> Any:
        """What the first attempt of a run says of a policy or a facade; None if it has none."""
        gates = [each["gate"] for each in lines if "gate" in each]
        return next((each[what] for each in (gates or [[]])[0] if what in each), None)

    def runs(self) -> list[str]:
        """The ids of its runs."""
        return [each.run for each in rollcage.open_store(self.store).runs()]

    def bound(self, session: Any, tool: Callable[..., Any], first: str) -> Callable[[Any], Any]:
        """A tool of one argument, for threads that know no session."""

        def call(value: Any) -> Any:
            if inspect.iscoroutinefunction(tool):
                return session.acall(tool, **{first: value})
            return session.call(tool, **{first: value})

        return call

    def model(self, session: Any, contract: Any, arguments: Mapping[str, Any], **how: Any) -> Any:
        """Ask a model."""
        ask = partial(session.run_call, contract, arguments, how.pop("body"), kind="model")
        return ask(**how)
