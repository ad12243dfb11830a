"""Tests of a policy in a file of their own, and what in a policy can do nothing."""

from pathlib import Path
from typing import Any

import pytest
from rollcage import Contract, tool
from rollcage.errors import PolicyInvalid
from rollcage_policy import Cases, Policy, deciders, doubts

POLICY = """
version = 1

[[rules]]
id = "small"
tools = ["pay"]
when = "args.amount <= 100"
decision = "allow"

[[rules]]
id = "risky"
when = 'tool.risk == "high" && !tool.reversible'
decision = "ask"
reason = "risky"

[[rules]]
id = "stranger"
tools = ["mail"]
when = '"untrusted" in labels && !named(args.to)'
decision = "deny"
code = "stranger"
reason = "nobody named them"
remedy = "Ask the user."

[[rules]]
id = "mail"
tools = ["mail"]
decision = "allow"

[[rules]]
id = "inside"
tools = ["fetch"]
when = "public_host(host(args.url))"
decision = "allow"

[[rules]]
id = "models"
kinds = ["model"]
decision = "allow"

[[limits.rules]]
id = "mails"
tools = ["mail"]
calls = 2

[[limits.rules]]
id = "tokens"
kinds = ["model"]
tokens = 100

[[limits.rules]]
id = "at-once"
tools = ["mail"]
concurrency = 1

[[limits.rules]]
id = "soon"
tools = ["mail"]
rate = "2/min"

[limits.loops]
same = 1
"""

HEAD = """
version = 1
policy = "policy.toml"
[tools.pay]
effect = "write"
[tools.mail]
[tools.fetch]
effect = "read"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    return tmp_path / "policy.tests.toml"


def run(file: Path, *cases: str, head: str = HEAD, tools: Any = ()) -> list[tuple[str, ...]]:
    text = head + "".join(f"[[cases]]\nname = 'a case'\n{each}\n" for each in cases)
    file.write_text(text, encoding="utf-8")
    loaded = Cases.load(file, tools)
    assert loaded.policy is not None
    assert loaded.policy == file.with_name("policy.toml")
    return [result.differences for result in loaded.run(Policy.load(loaded.policy))]


GOOD = {
    "a decision": "tool = 'pay'\nargs = {amount = 5}\nexpect = 'allow'",
    "all of it": "tool = 'pay'\nargs = {amount = 5}\n"
    "expect = {decision = 'allow', rule = 'small', code = 'allowed'}",
    "the default": "tool = 'pay'\nargs = {amount = 500}\nexpect={decision='deny',rule='default'}",
    "a rule that fails": "tool = 'pay'\nexpect = {decision = 'deny', code = 'rule_error'}",
    "a tool of its own": "tool = {name='rm', risk='high'}\nexpect = {decision='ask', rule='risky'}",
    "a reversible one": "tool = {name = 'rm', risk = 'high', reversible = true}\nexpect = 'deny'",
    "labels": "tool = 'mail'\nargs = {to = 'ann'}\nlabels = ['untrusted']\n"
    "user_input = 'mail bob'\n"
    "expect = {decision = 'deny', rule = 'stranger', message = 'nobody named them. Ask'}",
    "user input": "tool = 'mail'\nargs = {to = 'ann'}\nlabels = ['untrusted']\n"
    "user_input = ['hello', 'mail ann']\nexpect = {decision = 'allow', rule = 'mail'}",
    "no user input": "tool = 'mail'\nargs = {to = 'ann'}\nlabels = ['untrusted']\n"
    "expect = {decision = 'deny', code = 'rule_error'}",
    "a public host": "tool = 'fetch'\nargs = {url = 'https://a.example.com/'}\n"
    "resolves = {'a.example.com' = ['93.184.216.34']}\nexpect = 'allow'",
    "a host that leads inside": "tool = 'fetch'\nargs = {url = 'https://a.example.com/'}\n"
    "resolves = {'a.example.com' = ['10.0.0.1']}\nexpect = {decision='deny', rule='default'}",
    "no host is looked up": "tool = 'fetch'\nargs = {url = 'https://a.example.com/'}\n"
    "expect = {decision = 'deny', code = 'rule_error'}",
    "a model": "tool = 'gpt'\nkind = 'model'\nexpect = {decision = 'allow', rule = 'models'}",
    "calls before it": "tool = 'mail'\nargs = {to = 'c'}\nexpect = {decision='deny',rule='mails'}\n"
    "after = [{tool = 'mail', args = {to = 'a'}}, {tool = 'mail', args = {to = 'b'}}]",
    "tokens before it": "tool = 'gpt'\nkind = 'model'\nexpect = {decision='deny', rule='tokens'}\n"
    "after = [{tool='gpt', kind='model', args={q=1}, input_tokens=60, output_tokens=40}]",
    "one that has not ended": "tool = 'mail'\nargs = {to = 'c'}\n"
    "expect = {decision = 'deny', rule = 'at-once'}\n"
    "after = [{tool = 'mail', args = {to = 'a'}, running = true}]",
    "a loop": "tool = 'mail'\nargs = {to = 'a'}\nexpect = {decision = 'deny', rule = 'loops'}\n"
    "after = [{tool = 'mail', args = {to = 'a'}, times = 3, failed = true}]",
    "arguments as a trace shows them": "tool = 'mail'\n"
    "args = {to = {'$rollcage' = 'path', value = '/tmp'}}\nexpect = 'allow'",
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD)
def test_a_case_that_is_as_expected(file: Path, case: str) -> None:
    assert run(file, case) == [()]


def test_a_case_that_is_not_says_what_differs(file: Path) -> None:
    expect = "expect = {decision = 'allow', rule = 'x', code = 'y', message = 'z'}"
    (found,) = run(
        file,
        f"tool = 'mail'\nargs = {{to = 'a'}}\nlabels = ['untrusted']\nuser_input = 'b'\n{expect}",
    )
    assert found == (
        "decision: 'allow' is expected, not 'deny'",
        "rule: 'x' is expected, not 'stranger'",
        "code: 'y' is expected, not 'stranger'",
        "message: 'z' is not in 'nobody named them. Ask the user.'",
    )


def test_a_rate_is_of_the_time_that_is_given(file: Path) -> None:
    before = "after = [{tool='mail', args={to='a'}, at=1.0}, {tool='gpt', kind='model', at=2.0}]"
    text = (file.with_name("policy.toml")).read_text(encoding="utf-8").replace("2/min", "1/min")
    file.with_name("policy.toml").write_text(text, encoding="utf-8")
    case = f"tool = 'mail'\nargs = {{to = 'c'}}\n{before}\n"
    assert run(file, case + "expect = {decision = 'deny', rule = 'soon'}") == [()]
    assert run(file, case + "run = {elapsed = 61.0}\nexpect = 'allow'") == [()]


def test_a_tool_of_today_takes_its_own_arguments_only(file: Path) -> None:
    @tool(effect="write", risk="high")
    def wire(amount: int) -> None: ...

    tools = [vars(wire)["__rollcage_contract__"]]
    good = "tool = 'wire'\nargs = {amount = 3}\nexpect = {decision = 'ask', rule = 'risky'}"
    bad = "tool = 'wire'\nargs = {amuont = 3}\nexpect = 'ask'"
    found = run(file, good, bad, tools=tools)
    assert found[0] == ()
    assert "the tool does not take these arguments: wire: amount" in found[1][0]


def test_all_that_can_decide_is_to_be_covered() -> None:
    assert deciders(Policy.parse(POLICY)) == (
        "small", "risky", "stranger", "mail", "inside", "models", "mails", "tokens", "at-once",
        "soon", "loops",
    )  # fmt: skip


BAD = {
    "no cases": ("version = 1\n", 1, "cases", "is missing"),
    "an empty list": ("version = 1\ncases = []\n", 2, "cases", "at least 1 item"),
    "another version": (
        "version = 2\n[[cases]]\nname='a'\ntool='pay'\nexpect='deny'\n[tools.pay]\n",
        1,
        "version",
        "should be 1",
    ),
    "no TOML": ("version = \n", 1, "", "not TOML"),
    "a mistyped key": (
        "version = 1\n[tools.a]\n[[cases]]\nname='a'\ntool='a'\n\nexpct='deny'\nexpect='deny'\n",
        7,
        "cases[0].expct",
        "did you mean 'expect'?",
    ),
    "no expectation": (
        "version = 1\n[tools.a]\n[[cases]]\nname='a'\ntool='a'\n",
        3,
        "cases[0].expect",
        "is missing",
    ),
    "another decision": (
        "version = 1\n[tools.a]\n[[cases]]\nname='a'\ntool='a'\nexpect='maybe'\n",
        6,
        "cases[0].expect.decision",
        "not 'maybe'",
    ),
    "an unknown tool": (
        "version = 1\n[tools.pay]\n[[cases]]\nname='a'\ntool='pya'\nexpect='deny'\n",
        5,
        "cases[0].tool",
        "no tool 'pya' is declared; did you mean 'pay'?",
    ),
    "an undeclared one": (
        "version = 1\n[[cases]]\nname='a'\ntool='pay'\nexpect='deny'\n",
        4,
        "cases[0].tool",
        "declare it in [tools.pay]",
    ),
    "an unknown one before": (
        (
            "version = 1\n[[cases]]\nname='a'\ntool={name='b', risk='x'}\nexpect='deny'\n"
            "[[cases.after]]\ntool='c'\n"
        ),
        7,
        "cases[0].after[0].tool",
        "no tool 'c'",
    ),
    "a field of a tool": (
        "version = 1\n[[cases]]\nname='a'\ntool={name='a', efect='read'}\nexpect='deny'\n",
        4,
        "cases[0].tool.efect",
        "did you mean 'effect'?",
    ),
    "nothing to undo": (
        (
            "version = 1\n[tools.a]\neffect='read'\nreversible=true\n[[cases]]\nname='a'\n"
            "tool='a'\n"
            "expect='deny'\n"
        ),
        2,
        "tools.a",
        "reversible is for tools that write",
    ),
    "a permission that is none": (
        (
            "version = 1\n[tools.a]\npermissions=['net:a:99999']\n[[cases]]\nname='a'\n"
            "tool='a'\nexpect='deny'\n"
        ),
        2,
        "tools.a",
        "99999",
    ),
    "calls out of order": (
        (
            "version = 1\n[tools.a]\n[[cases]]\nname='a'\ntool='a'\nexpect='deny'\n"
            "after=[{tool='a', at=2.0}, {tool='a', at=1.0}]\n"
        ),
        3,
        "cases[0]",
        "in the order in which they were made",
    ),
    "a time before them": (
        (
            "version = 1\n[tools.a]\n[[cases]]\nname='a'\ntool='a'\nexpect='deny'\n"
            "after=[{tool='a', at=2.0}]\nrun={elapsed=1.0}\n"
        ),
        3,
        "cases[0]",
        "run.elapsed is earlier than the last call",
    ),
}


@pytest.mark.parametrize(("text", "line", "path", "reason"), BAD.values(), ids=BAD)
def test_a_file_that_can_not_be_meant(
    file: Path, text: str, line: int, path: str, reason: str
) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyInvalid) as caught:
        Cases.load(file)
    (problem,) = caught.value.problems
    assert (problem.where, problem.line, problem.path) == (str(file), line, path)
    assert reason in problem.reason


def test_tests_in_yaml(file: Path) -> None:
    pytest.importorskip("yaml")
    path = file.with_suffix(".yaml")
    path.write_text(
        "version: 1\ncases:\n  - name: a\n    tool: {name: pay, effect: write}\n"
        "    args: {amount: 5}\n    expect: allow\n",
        encoding="utf-8",
    )
    loaded = Cases.load(path)
    assert loaded.policy is None
    assert loaded.cases[0].line == 3
    assert [each.passed for each in loaded.run(Policy.parse(POLICY))] == [True]


# --- what can do nothing -------------------------------------------------------------------------


def rule(id_: str, decision: str, **more: object) -> str:
    more = {"id": id_, "decision": decision, "reason": "because", **more}
    return "[[rules]]\n" + "".join(f"{name} = {value!r}\n" for name, value in more.items())


def doubted(
    *rules: str, head: str = "", tools: list[Contract] | None = None
) -> list[tuple[str, str]]:
    found = doubts(Policy.parse(f"version = 1\n{head}\n" + "\n".join(rules)), tools)
    return [(each.code, each.id) for each in found]


NEVER = {
    "behind one of the same kind": [rule("a", "allow"), rule("b", "allow", tools=["x"])],
    "under a stronger one": [rule("b", "allow", tools=["x_y"]), rule("a", "deny", tools=["x_*"])],
    "under a stronger glob": [rule("b", "ask", tools=["x_y*"]), rule("a", "deny", tools=["x_*"])],
    "by effects": [
        rule("a", "deny", effects=["read", "write"]),
        rule("b", "ask", effects=["read"]),
    ],
    "by agents": [rule("a", "deny", agents=["bob", "ann*"]), rule("b", "ask", agents=["ann"])],
    "of one condition": [
        rule("a", "deny", when="args.x > 1"),
        rule("b", "allow", when="args.x > 1", tools=["y"]),
    ],
    "always": [rule("a", "deny", when="1 + 1 == 2"), rule("b", "allow")],
}
SOMETIMES = {
    "the weaker one is wider": [rule("a", "allow"), rule("b", "deny", tools=["x"])],
    "the stronger one has a condition": [rule("a", "deny", when="args.x > 1"), rule("b", "allow")],
    "other tools": [rule("a", "deny", tools=["x_?"]), rule("b", "allow", tools=["x_*"])],
    "letters of a set": [rule("a", "deny", tools=["x_*a*"]), rule("b", "ask", tools=["x_[ab]"])],
    "more effects": [rule("a", "deny", effects=["read"]), rule("b", "allow")],
    "other kinds": [rule("a", "deny", kinds=["tool"]), rule("b", "allow")],
    "it comes first": [rule("a", "allow", tools=["x"]), rule("b", "allow")],
    "it always fails, which denies": [rule("a", "allow", when="1 / 0 == 1"), rule("b", "allow")],
}


@pytest.mark.parametrize("rules", NEVER.values(), ids=NEVER)
def test_a_rule_that_never_decides(rules: list[str]) -> None:
    assert doubted(*rules) == [("shadowed", "b")]


@pytest.mark.parametrize("rules", SOMETIMES.values(), ids=SOMETIMES)
def test_a_rule_that_may_decide(rules: list[str]) -> None:
    assert doubted(*rules) == []


def test_a_condition_that_is_never_met() -> None:
    head = "[constants]\nlive = false"
    assert doubted(rule("a", "deny", when="const.live"), head=head) == [("never_holds", "a")]


@tool(effect="write")
def write_file(path: str) -> None: ...


@tool(effect="read")
def read_file(path: str) -> None: ...


TOOLS = [vars(each)["__rollcage_contract__"] for each in (write_file, read_file)]

WITH_TOOLS = {
    "no such tool": (rule("a", "deny", tools=["write_*", "read_flie"]), "no_such_tool"),
    "no tool of that effect": (
        rule("a", "deny", tools=["read_*"], effects=["write"]),
        "no_such_tool",
    ),
    "no such argument": (
        rule("a", "deny", tools=["write_*"], when="args.pth == ''"),
        "no_such_argument",
    ),
    "a limit on nothing": (
        "[[limits.rules]]\nid = 'a'\ntools = ['x']\ncalls = 1\n",
        "no_such_tool",
    ),
}


@pytest.mark.parametrize(("text", "code"), WITH_TOOLS.values(), ids=WITH_TOOLS)
def test_what_no_tool_answers_to(text: str, code: str) -> None:
    assert doubted(rule("z", "allow"), text) in ([], [("shadowed", "a")])
    assert doubted(rule("z", "allow"), text, tools=TOOLS) == [(code, "a")]


def test_what_tools_answer_to() -> None:
    fine = rule("a", "deny", tools=["write_*"], when="args.path == ''")
    models = rule("b", "deny", tools=["gpt-*"], kinds=["model"])
    anything = rule("c", "deny", when="has(args.any) && args.any == ''")
    more = [*TOOLS, Contract(name="mcp", parameters={"type": "object"})]
    assert doubted(fine, models, anything, rule("z", "allow"), tools=more) == []


def test_a_tool_that_no_rule_is_about() -> None:
    assert doubted(rule("a", "allow", tools=["write_*"]), tools=TOOLS) == [("no_rule", "read_file")]


def test_a_doubt_says_where_and_what() -> None:
    made = Policy.parse(
        "version = 1\n" + rule("a", "allow") + rule("b", "allow", tools=["read_fle"])
    )
    assert [str(each) for each in doubts(made, TOOLS)] == [
        "policy, line 6: b: it never decides: a (allow) matches the same calls, and comes first",
        "policy, line 6: b: no tool is called 'read_fle'; did you mean 'read_file'?",
    ]
