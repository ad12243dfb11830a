"""Rules that most policies need, by name and parameters: `[[presets]] use = "workspace"`.

A preset is only data for rules: you could write the rules that it expands to by hand, and
`rollcage policy explain` shows them. Presets that describe what may happen (`workspace`, `network`,
`read-only`) allow it, unless `allow = false` is set, and deny everything else. The others only
restrict. As everywhere, deny overrides ask, and ask overrides allow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import pydantic
from pydantic import Field, StringConstraints

from rollcage_policy.addresses import host_name

__all__ = ["PRESETS", "Budget", "Network", "Preset", "ReadOnly", "ReversibleOnly", "Secrets",
           "Workspace"]  # fmt: skip

Word = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00-\x1f]+$")]
Words = Annotated[list[Word], Field(min_length=1)]


class Preset(pydantic.BaseModel):
    """The parameters that all presets have.

    Attributes:
        name: distinguishes two uses of one preset; it becomes part of the rules' ids.
        tools: globs over the names of the tools that it applies to.
        agents: globs over the names of the agents that it applies to.
    """

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    use: ClassVar[str]

    name: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    tools: Words
    agents: Words = ["*"]

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules, as in a policy file."""
        return []

    def limits(self) -> list[dict[str, Any]]:
        """Return the limits, as in a policy file below `limits.rules`."""
        return []

    def _id(self, what: str) -> str:
        return "/".join(part for part in (self.use, self.name, what) if part)

    def _rule(self, what: str, decision: str, **more: Any) -> dict[str, Any]:
        """Return a rule for this preset's tools and agents; members that are None are left out."""
        kept = {name: value for name, value in more.items() if value is not None}
        rule = {"id": self._id(what), "tools": list(self.tools), "kinds": ["tool"]}
        if self.agents != ["*"]:
            rule["agents"] = list(self.agents)
        return {**rule, **kept, "decision": decision}


class _OfAnyTool(Preset):
    """A preset for all tools by default."""

    tools: Words = ["*"]


class Workspace(Preset):
    """Confine tools to one folder: every path argument must lie in it.

    Attributes:
        root: the folder; an absolute path.
        arguments: the names of the arguments that are paths, or lists of paths. A call needs at
            least one of them, and none may be an empty list. Other arguments are not checked.
        base: the folder that the tools resolve relative paths from; without it, relative paths pass
            only if the working directory and the root give the same answer.
        allow: whether calls that stay inside are allowed; otherwise the preset only denies others.
    """

    use: ClassVar[str] = "workspace"

    root: Word
    arguments: Words = ["path", "paths", "source", "target", "src", "dst", "file", "filename",
                        "file_path", "directory", "folder", "destination"]  # fmt: skip
    base: Word | None = None
    allow: bool = True

    @pydantic.field_validator("root", "base")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("must be an absolute path")
        return value

    def rules(self) -> list[dict[str, Any]]:
        """Return a rule that denies paths that lead outside, and a rule that allows the rest."""
        more = "" if self.base is None else f", {_quoted(self.base)}"
        found = [
            self._rule(
                "outside",
                "deny",
                when=_unless_each(self.arguments, f"within(args[a], {_quoted(self.root)}{more})"),
                code="outside_workspace",
                reason="a path that leads out of the workspace",
                remedy=f"Use paths below {self.root}, written plainly.",
            )
        ]
        return [*found, self._rule("inside", "allow")] if self.allow else found


class Network(Preset):
    """Confine tools to a list of hosts on the public internet.

    Attributes:
        hosts: `api.example.com`, `*.example.com` (all names below), `*` (all), or addresses.
        arguments: the names of the arguments that are URLs, or lists of URLs. A call needs at least
            one of them, and none may be an empty list. Other arguments are not checked.
        ports: the ports that may be reached.
        schemes: any of `http`, `https`, `ws` and `wss`.
        public: whether a host has to be on the public internet, with all its addresses; use false
            for hosts of your own network.
        allow: whether calls to these hosts are allowed; otherwise the preset only denies others.
    """

    use: ClassVar[str] = "network"

    hosts: Words
    arguments: Words = ["url", "urls"]
    ports: Annotated[list[int], Field(min_length=1)] = [80, 443]
    schemes: Annotated[list[Literal["http", "https", "ws", "wss"]], Field(min_length=1)] = [
        "https",
        "http",
    ]
    public: bool = True
    allow: bool = True

    @pydantic.field_validator("hosts")
    @classmethod
    def _plain(cls, hosts: list[str]) -> list[str]:
        return [_plain_host(each) for each in hosts]

    def rules(self) -> list[dict[str, Any]]:
        """Return a rule that denies other URLs, and a rule that allows the rest."""
        # The name first: a host that is not on the list is never looked up.
        tests = [
            f"scheme(url) in {_listed(list(self.schemes))}",
            f"port(url) in {self.ports}",
            f"host_in(host(url), {_listed(self.hosts)})",
        ]
        if self.public:
            tests.append("public_host(host(url))")
        each = f"(type(args[a]) == list ? args[a] : [args[a]]).all(url, {' && '.join(tests)})"
        each = f"(args[a] != [] && {each})"  # an empty list would pass
        found = [
            self._rule(
                "elsewhere",
                "deny",
                when=_unless_each(self.arguments, each),
                code="host_not_allowed",
                reason="a URL that this agent may not reach",
                remedy=f"Reachable are: {', '.join(self.hosts)}.",
            )
        ]
        return [*found, self._rule("listed", "allow")] if self.allow else found


class ReadOnly(_OfAnyTool):
    """Deny tools that write, and allow tools that read.

    Attributes:
        allow: whether tools that don't write are allowed; otherwise the preset only denies tools
            that write.
    """

    use: ClassVar[str] = "read-only"

    allow: bool = True

    def rules(self) -> list[dict[str, Any]]:
        """Return a rule that denies writes, and a rule that allows the rest."""
        found = [
            self._rule(
                "writes",
                "deny",
                effects=["write"],
                code="read_only",
                reason="this tool writes, and only reads are allowed here",
            )
        ]
        reads = self._rule("reads", "allow", effects=["pure", "read", "scope"])
        return [*found, reads] if self.allow else found


class ReversibleOnly(_OfAnyTool):
    """Require approval for tools that can't be undone, or deny them.

    Attributes:
        otherwise: the decision on a tool that declares no undo: `ask` or `deny`.
    """

    use: ClassVar[str] = "reversible-only"

    otherwise: Literal["ask", "deny"] = "ask"

    def rules(self) -> list[dict[str, Any]]:
        """Return a rule for tools that can't be undone."""
        return [
            self._rule(
                "irreversible",
                self.otherwise,
                when="!tool.reversible",
                code="irreversible",
                reason="this tool's effect can't be undone",
            )
        ]


class Secrets(_OfAnyTool):
    """Refuse credentials in arguments, as far as the detector finds them.

    It needs `rollcage[secrets]`.

    Attributes:
        otherwise: the decision on a call that holds a credential: `ask` or `deny`.
    """

    use: ClassVar[str] = "secrets"

    otherwise: Literal["ask", "deny"] = "deny"

    def rules(self) -> list[dict[str, Any]]:
        """Return a rule for calls with credentials."""
        return [
            self._rule(
                "found",
                self.otherwise,
                when="secret(args)",
                code="secret_found",
                reason="an argument holds what looks like a credential",
                remedy="Leave credentials out; the tool has its own.",
            )
        ]


class Budget(_OfAnyTool):
    """A budget for a run. At least one of the amounts is given.

    Attributes:
        calls: how many calls.
        cost: how much, in the currency of the policy's prices.
        tokens: how many tokens, for model calls.
        seconds: how much wall time.
        per: the unit that has a budget of its own: the run, each tool or each agent.
        otherwise: the decision on a call beyond it: `ask` or `deny`.
    """

    use: ClassVar[str] = "budget"

    calls: int | None = Field(default=None, ge=0)
    cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    tokens: int | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    per: Literal["run", "tool", "agent"] = "run"
    otherwise: Literal["ask", "deny"] = "deny"

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self._figures():
            raise ValueError("give at least one of calls, cost, tokens and seconds")
        return self

    def _figures(self) -> dict[str, Any]:
        every = {"calls": self.calls, "cost": self.cost, "tokens": self.tokens,
                 "seconds": self.seconds}  # fmt: skip
        return {name: figure for name, figure in every.items() if figure is not None}

    def limits(self) -> list[dict[str, Any]]:
        """Return a limit for each amount, so that a denial names the exhausted amount."""
        return [
            {
                "id": self._id(name),
                "tools": list(self.tools),
                "agents": list(self.agents),
                "per": self.per,
                name: figure,
                "decision": self.otherwise,
            }
            for name, figure in self._figures().items()
        ]


PRESETS: Final[Mapping[str, type[Preset]]] = {
    each.use: each for each in (Workspace, Network, ReadOnly, ReversibleOnly, Budget, Secrets)
}
"""Each preset's parameters, by its name in policies."""


def _quoted(text: str) -> str:
    """Return a text as a CEL literal: CEL accepts JSON's escapes, but no surrogates."""
    return json.dumps(text, ensure_ascii=False)


def _unless_each(arguments: list[str], test: str) -> str:
    """Return a condition: false if an argument is present and all present ones pass a test.

    The test is on `args[a]`.
    """
    names = _listed(arguments)
    return f"!({names}.exists(a, a in args) && {names}.all(a, !(a in args) || {test}))"


def _listed(texts: list[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _plain_host(written: str) -> str:
    """Return a host of a list in the spelling of `host`, with its star."""
    if written == "*":
        return written
    star, rest = ("*.", written[2:]) if written.startswith("*.") else ("", written)
    bare = rest.count(":") > 1 and not rest.startswith("[")
    return star + host_name(f"[{rest}]" if bare else rest)
