"""The texts of policies to begin with, and of their tests; `@NAME@` is filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["STARTERS", "Starter"]


class Starter(NamedTuple):
    """A policy to begin with."""

    policy: str
    tests: str


_HEAD: Final = """\
# What an agent may do. Each rule says allow, ask or deny; deny goes over ask, ask over allow.
#
#   rollcage policy check FILE           is it valid, and does each rule do something?
#   rollcage policy test TESTS           do its tests pass?
#   rollcage policy replay FILE [RUN]    what would it change in recorded runs?

version = 1
name = "@NAME@"
default = "deny"            # what a call gets that no rule is about
mode = "enforce"            # "shadow" decides and records, and holds nothing up

# Without this, no model could be called either.
[[rules]]
id = "models"
kinds = ["model"]
decision = "allow"

"""

_TAIL: Final = """
# A rule of your own. A condition (`when`) is CEL; it sees tool, args, agent, run, labels, const.
#
# [[rules]]
# id = "small-payments"
# tools = ["pay"]
# when = "args.amount > 100"
# decision = "ask"
# reason = "more than 100 is paid"
# remedy = "Ask for a smaller amount."
"""

_ALLOWED: Final = """
# What is left after the rules above. Narrow it: name the tools.
[[rules]]
id = "tools"
kinds = ["tool"]
decision = "allow"
"""

_TESTS: Final = """\
# Tests of the policy: calls, and what each of them is to get. Nothing is called.

version = 1
policy = @POLICY@

[tools.read_file]
effect = "read"

[tools.write_file]
effect = "write"

[tools.fetch_page]
effect = "read"

[[cases]]
name = "a model may be called"
tool = "some-model"
kind = "model"
expect = { decision = "allow", rule = "models" }

"""


def _starter(name: str, policy: str, tests: str, *, allows: bool) -> Starter:
    head = _HEAD.replace("@NAME@", name)
    return Starter(head + policy + ("" if allows else _ALLOWED) + _TAIL, _TESTS + tests)


STARTERS: Final[Mapping[str, Starter]] = {
    "workspace": _starter(
        "workspace",
        """\
# File tools stay in one folder: every path that they are given lies in it.
[[presets]]
use = "workspace"
root = @ROOT@
base = @ROOT@            # what the tools take a relative path from
tools = ["read_*", "write_*"]
# arguments = ["path"]      # the names of the arguments that are paths, where they are others
""",
        """\
[[cases]]
name = "a file of the workspace is written"
tool = "write_file"
args = { path = @INSIDE@, text = "hello" }
expect = { decision = "allow", rule = "workspace/inside" }

[[cases]]
name = "no way out"
tool = "read_file"
args = { path = "../../../../../../etc/passwd" }
expect = { decision = "deny", code = "outside_workspace" }

[[cases]]
name = "other tools are not allowed"
tool = "fetch_page"
args = { url = "https://example.com/" }
expect = { decision = "deny", rule = "default" }
""",
        allows=True,
    ),
    "network": _starter(
        "network",
        """\
# Tools reach these hosts, and nothing off the public internet.
[[presets]]
use = "network"
hosts = @HOSTS@
tools = ["fetch_*"]
# arguments = ["url"]       # the names of the arguments that are URLs, where they are others
""",
        """\
[[cases]]
name = "a listed host is reached"
tool = "fetch_page"
args = { url = "https://@HOST@/v1" }
resolves = { "@HOST@" = ["93.184.216.34"] }
expect = { decision = "allow", rule = "network/listed" }

[[cases]]
name = "a listed host that leads inside is not"
tool = "fetch_page"
args = { url = "https://@HOST@/v1" }
resolves = { "@HOST@" = ["10.0.0.1"] }
expect = { decision = "deny", code = "host_not_allowed" }

[[cases]]
name = "nor is the machine itself"
tool = "fetch_page"
args = { url = "http://127.0.0.1/" }
expect = { decision = "deny", code = "host_not_allowed" }

[[cases]]
name = "other tools are not allowed"
tool = "write_file"
args = { path = "notes.txt" }
expect = { decision = "deny", rule = "default" }
""",
        allows=True,
    ),
    "read-only": _starter(
        "read-only",
        """\
# Nothing is changed: tools that write are denied, the others are allowed.
[[presets]]
use = "read-only"
""",
        """\
[[cases]]
name = "reading is allowed"
tool = "read_file"
args = { path = "notes.txt" }
expect = { decision = "allow", rule = "read-only/reads" }

[[cases]]
name = "writing is not"
tool = "write_file"
args = { path = "notes.txt", text = "hello" }
expect = { decision = "deny", code = "read_only" }
""",
        allows=True,
    ),
    "reversible-only": _starter(
        "reversible-only",
        """\
# Somebody is asked about what can't be undone.
[[presets]]
use = "reversible-only"
otherwise = "ask"           # or "deny"
""",
        """\
[[cases]]
name = "what can be undone is allowed"
tool = { name = "move_file", effect = "write", reversible = true }
expect = { decision = "allow", rule = "tools" }

[[cases]]
name = "somebody is asked about the rest"
tool = "write_file"
expect = { decision = "ask", code = "irreversible" }
""",
        allows=False,
    ),
    "budget": _starter(
        "budget",
        """\
# What a run may use, all in all. Costs need prices: see [prices].
[[presets]]
use = "budget"
calls = 200
seconds = 1800
# cost = 5.0
# tokens = 500_000

# An agent that goes round in circles: the same call, at most five times in a row.
# [limits.loops]
# same = 5
""",
        """\
[[cases]]
name = "there is room"
tool = "read_file"
args = { path = "a.txt" }
expect = { decision = "allow", rule = "tools" }

[[cases]]
name = "two hundred calls are enough"
tool = "read_file"
args = { path = "a.txt" }
expect = { decision = "deny", rule = "budget/calls" }

[[cases.after]]
tool = "read_file"
args = { path = "a.txt" }
times = 200

[[cases]]
name = "half an hour is enough"
tool = "read_file"
args = { path = "a.txt" }
run = { elapsed = 1800.0 }
expect = { decision = "deny", rule = "budget/seconds" }
""",
        allows=False,
    ),
    "secrets": _starter(
        "secrets",
        """\
# No credentials in arguments, where a detector knows them.
[[presets]]
use = "secrets"
""",
        """\
[[cases]]
name = "plain text is allowed"
tool = "write_file"
args = { path = "notes.txt", text = "hello" }
expect = { decision = "allow", rule = "tools" }

[[cases]]
name = "a credential is not"
tool = "write_file"
args = { path = "notes.txt", text = "password = 'Xk9-pL2vQ8r_Zt4w'" }
expect = { decision = "deny", code = "secret_found" }
""",
        allows=False,
    ),
}
