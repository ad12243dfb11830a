"""Presets: what each allows, asks about and denies, alone and beside others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from rollcage.contract.contract import Contract
from rollcage.errors import PolicyInvalid
from rollcage.gate import StepView, Verdict
from rollcage_policy import PRESETS, surroundings
from rollcage_policy.policy import Policy

ANSWERS = {"a.example": ["93.184.216.34"], "in.example": ["10.0.0.1"]}


def tool(name: str, effect: Any = "write", *, undo: bool = False) -> Contract:
    """A contract whose arguments are whatever the test says."""
    schema = {"type": "object", "additionalProperties": True}
    contract = Contract(name=name, parameters=schema, effect=effect)
    return dataclasses.replace(contract, undo=lambda args: None) if undo else contract


def asked(policy: str, contract: Contract, kind: str = "tool", **args: Any) -> Verdict:
    view = StepView(kind, contract, args, data=args)
    with surroundings(resolver=lambda host, port: ANSWERS[host]):
        return Policy.parse(policy).decide(view)


def using(preset: str, **given: Any) -> str:
    """A policy of one preset."""
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
    return f'version = 1\n[[presets]]\nuse = "{preset}"\n{lines}'


def says(policy: str, contract: Contract, **args: Any) -> tuple[str, str]:
    found = asked(policy, contract, **args)
    return found.decision, found.code


# --- workspace -----------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Callable[..., str]:
    root = str(tmp_path.resolve())
    return lambda **more: using("workspace", root=root, base=root, tools=["write"], **more)


def test_a_workspace_allows_what_stays_inside(workspace: Callable[..., str]) -> None:
    for args in ({"path": "a"}, {"source": "a", "target": "b/c"}, {"paths": ["a", "b"]}):
        assert says(workspace(), tool("write"), **args)[0] == "allow"


@pytest.mark.parametrize(
    "args",
    [{"path": "../a"}, {"path": "/etc/passwd"}, {"path": "a", "target": "/etc/passwd"}, {},
     {"paths": ["/etc/passwd"]}, {"elsewhere": "a"}],
)  # fmt: skip
def test_a_workspace_denies_what_leads_out(
    workspace: Callable[..., str], args: dict[str, Any]
) -> None:
    found = asked(workspace(), tool("write"), **args)
    assert (found.decision, found.code) == ("deny", "outside_workspace")
    assert found.rule == "workspace/outside"
    assert "paths below" in found.message


@pytest.mark.parametrize("path", [None, 1, "~/x", "a\0b", ["a", "/etc"], [], {"path": "a"}])
def test_a_path_that_can_not_be_decided_is_denied(workspace: Callable[..., str], path: Any) -> None:
    assert says(workspace(), tool("write"), path=path) == ("deny", "rule_error")


def test_the_arguments_of_a_workspace_can_be_named(workspace: Callable[..., str]) -> None:
    policy = workspace(arguments=["my-path", "in"])
    assert says(policy, tool("write"), **{"my-path": "a"})[0] == "allow"
    assert says(policy, tool("write"), **{"in": "../a"})[0] == "deny"
    assert says(policy, tool("write"), path="a")[0] == "deny"


def test_a_workspace_is_about_its_tools_only(workspace: Callable[..., str]) -> None:
    assert says(workspace(), tool("read"), path="a") == ("deny", "no_rule")
    assert says(workspace(allow=False), tool("write"), path="a") == ("deny", "no_rule")
    assert says(workspace(), tool("write"), kind="model", path="a") == ("deny", "no_rule")


def test_large_contents_are_no_reason_to_deny(workspace: Callable[..., str]) -> None:
    args = {"path": "a", "content": "x" * 10_000_000}
    assert says(workspace(), tool("write"), **args)[0] == "allow"


def test_a_root_of_any_letters_is_one(tmp_path: Path) -> None:
    root = tmp_path.resolve() / 'a "b" \\ é \U0001f600 {}'
    root.mkdir()
    policy = using("workspace", root=str(root), base=str(root), tools=["*"])
    policy = policy.replace("\\ud83d\\ude00", "\U0001f600")
    assert says(policy, tool("write"), path="x")[0] == "allow"
    assert says(policy, tool("write"), path="..")[0] == "deny"


# --- network -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "decision", "code"),
    [
        ("https://a.example/x", "allow", "allowed"),
        ("https://in.example/", "deny", "host_not_allowed"),
        ("https://a.example:8443/", "deny", "host_not_allowed"),
        ("wss://a.example/", "deny", "host_not_allowed"),
        ("https://b.example.org/", "deny", "host_not_allowed"),
        ("https://unknown.example/", "deny", "rule_error"),
        ("https://u:p@a.example/", "deny", "rule_error"),
        (["https://a.example/", "http://a.example/"], "allow", "allowed"),
        (["https://a.example/", "https://in.example/"], "deny", "host_not_allowed"),
        ([], "deny", "host_not_allowed"),
        (None, "deny", "rule_error"),
    ],
)
def test_a_network_is_a_list_of_hosts(url: Any, decision: str, code: str) -> None:
    policy = using("network", hosts=["*.example", "A.example."], tools=["fetch"])
    assert says(policy, tool("fetch", "read"), url=url) == (decision, code)


def test_hosts_of_ones_own_network_are_reached_where_that_is_allowed() -> None:
    given = {"hosts": ["in.example", "10.0.0.1", "::1"], "tools": ["*"], "ports": [8080]}
    policy = using("network", public=False, **given)
    for url in ("http://in.example:8080/", "http://10.0.0.1:8080/", "http://[::1]:8080/"):
        assert says(policy, tool("fetch"), url=url)[0] == "allow"
        assert says(using("network", **given), tool("fetch"), url=url)[0] == "deny"


def test_a_host_that_is_not_listed_is_never_looked_up() -> None:
    policy = using("network", hosts=["a.example"], tools=["*"])
    assert says(policy, tool("fetch"), url="https://nobody-knows.example/")[0] == "deny"


# --- the others ----------------------------------------------------------------------------------


def test_read_only() -> None:
    policy = using("read-only")
    for effect in ("pure", "read", "scope"):
        assert says(policy, tool("any", effect))[0] == "allow"
        assert says(using("read-only", allow=False), tool("any", effect)) == ("deny", "no_rule")
    assert says(policy, tool("any")) == ("deny", "read_only")


@pytest.mark.parametrize("otherwise", ["ask", "deny"])
def test_reversible_only(otherwise: str) -> None:
    policy = 'default = "allow"\n' + using("reversible-only", otherwise=otherwise)
    assert says(policy, tool("any")) == (otherwise, "irreversible")
    assert says(policy, tool("any", undo=True))[0] == "allow"
    assert says(policy, tool("any", "read"))[0] == "allow"


def test_secrets() -> None:
    policy = 'default = "allow"\n' + using("secrets", tools=["send"], otherwise="ask")
    held = {"text": ["key", {"a": "AKIA" + "Q" * 16}]}
    assert says(policy, tool("send"), **held) == ("ask", "secret_found")
    assert says(policy, tool("send"), text="no key")[0] == "allow"
    assert says(policy, tool("keep"), **held)[0] == "allow"


def test_a_budget_is_a_limit_for_each_figure() -> None:
    preset = PRESETS["budget"].model_validate(
        {"calls": 5, "cost": 1, "name": "small", "tools": ["fetch_*"], "per": "agent"}
    )
    assert preset.rules() == []
    calls, cost = preset.limits()
    assert (calls["id"], calls["calls"]) == ("budget/small/calls", 5)
    assert (cost["id"], cost["cost"]) == ("budget/small/cost", 1)
    assert calls["per"] == "agent"
    assert calls["tools"] == ["fetch_*"]
    limits = Policy.parse(using("budget", calls=5, tokens=9)).limits
    assert [each.id for each in limits.rules] == ["budget/calls", "budget/tokens"]


def test_presets_together_allow_no_more_than_each() -> None:
    policy = using("read-only") + using("network", hosts=["*"], tools=["*"])[len("version = 1\n") :]
    assert says(policy, tool("fetch", "read"), url="https://a.example/")[0] == "allow"
    assert says(policy, tool("fetch", "read"), url="https://in.example/")[0] == "deny"
    assert says(policy, tool("post", "write"), url="https://a.example/")[0] == "deny"


def test_a_preset_is_used_twice_by_two_names(tmp_path: Path) -> None:
    parts = [
        using("workspace", name=name, root=str(tmp_path), tools=[f"{name}_*"])
        for name in ("in", "out")
    ]
    policy = Policy.parse(parts[0] + parts[1].removeprefix("version = 1\n"))
    assert [rule.id for rule in policy.rules] == [
        "workspace/in/outside",
        "workspace/in/inside",
        "workspace/out/outside",
        "workspace/out/inside",
    ]
    with pytest.raises(PolicyInvalid, match="workspace/outside"):
        Policy.parse((parts[0] + parts[0].removeprefix("version = 1\n")).replace('"in"', '""'))


def test_a_preset_can_be_about_some_agents() -> None:
    (rule,) = PRESETS["read-only"].model_validate({"agents": ["intern"], "allow": False}).rules()
    assert rule["agents"] == ["intern"]


@pytest.mark.parametrize(
    ("preset", "given", "says"),
    [
        ("workspace", {}, "root"),
        ("workspace", {"root": "/x"}, "tools"),
        ("workspace", {"root": "x", "tools": ["*"]}, "absolute"),
        ("workspace", {"root": "/x", "tools": ["*"], "base": "."}, "absolute"),
        ("workspace", {"root": "/x", "tools": []}, "at least 1"),
        ("workspace", {"root": "/x", "tools": ["*"], "arguments": [""]}, "at least 1"),
        ("workspace", {"root": "/x\n", "tools": ["*"]}, "pattern"),
        ("workspace", {"root": "/x", "tools": "*"}, "list"),
        ("network", {"tools": ["*"]}, "hosts"),
        ("network", {"hosts": [], "tools": ["*"]}, "at least 1"),
        ("network", {"hosts": ["http://a.example"], "tools": ["*"]}, "not a host name"),
        ("network", {"hosts": ["127.1"], "tools": ["*"]}, "some read"),
        ("network", {"hosts": ["a.*"], "tools": ["*"]}, "not a host name"),
        ("network", {"hosts": ["*"], "tools": ["*"], "ports": ["80"]}, "integer"),
        ("network", {"hosts": ["*"], "tools": ["*"], "schemes": ["file"]}, "http"),
        ("reversible-only", {"otherwise": "allow"}, "ask"),
        ("read-only", {"alow": True}, "extra"),
        ("read-only", {"allow": "no"}, "bool"),
        ("read-only", {"name": "a b"}, "pattern"),
        ("budget", {}, "at least one of"),
        ("budget", {"calls": -1}, "greater than or equal"),
        ("budget", {"cost": float("nan")}, "finite|greater"),
        ("secrets", {"otherwise": "maybe"}, "ask"),
    ],
)
def test_what_a_preset_is_given_is_checked(preset: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=rf"(?i){says}"):
        PRESETS[preset].model_validate(given)
