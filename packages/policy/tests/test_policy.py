"""A policy decides: deny over ask over allow, and whatever fails denies."""

import dataclasses
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from rollcage import Contract, errors
from rollcage.gate import StepView
from rollcage_policy import Policy


def write_file(path: str, size: int = 1) -> None: ...
def read_file(path: str) -> None: ...


WRITE = Contract.of(write_file, effect="write", risk="high", permissions=["disk"])
READ = Contract.of(read_file, effect="read")


def view(**how: Any) -> StepView:
    data = how.pop("data", {"path": "/usr/a", "size": 1})
    return StepView(**{"kind": "tool", "contract": WRITE, "args": data, "data": data, **how})


def view_of(name: str, **how: Any) -> StepView:
    return view(contract=Contract(name=name, parameters={"type": "object"}), **how)


def rule(id_: str, decision: str, **more: object) -> str:
    more = {"id": id_, "decision": decision, **more}
    if decision != "allow":
        more.setdefault("reason", f"{id_} says so")
    return "[[rules]]\n" + "".join(f"{name} = {value!r}\n" for name, value in more.items())


def policy(*rules: str, head: str = "", tail: str = "") -> Policy:
    return Policy.parse(f"version = 1\n{head}\n" + "\n".join(rules) + tail)


# --- the decision --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "decision", "by"),
    [
        ([], "deny", "default"),
        (["allow"], "allow", "0"),
        (["allow", "allow"], "allow", "0"),
        (["allow", "ask"], "ask", "1"),
        (["ask", "allow", "ask"], "ask", "0"),
        (["ask", "deny", "allow", "deny"], "deny", "1"),
        (["deny", "ask"], "deny", "0"),
    ],
)
def test_deny_goes_over_ask_goes_over_allow_and_the_first_of_equals(
    rules: list[str], decision: str, by: str
) -> None:
    made = policy(*(rule(str(number), each) for number, each in enumerate(rules)))
    verdict = made.decide(view())
    assert (verdict.decision, verdict.rule) == (decision, by)


def test_a_verdict_says_what_the_rule_says() -> None:
    said = rule("a", "deny", reason="not on Sundays", remedy="Wait for Monday.", code="sunday")
    verdict = policy(said).decide(view())
    assert verdict.message == "not on Sundays. Wait for Monday."
    assert (verdict.code, verdict.rule) == ("sunday", "a")
    codes = {"allow": "allowed", "ask": "approval_required", "deny": "denied"}
    assert {each: policy(rule("a", each)).decide(view()).code for each in codes} == codes


@pytest.mark.parametrize("default", ["allow", "ask", "deny"])
def test_a_call_that_no_rule_is_about_gets_the_default(default: str) -> None:
    made = policy(rule("a", "allow", tools=["other"]), head=f"default = '{default}'")
    verdict = made.decide(view())
    assert (verdict.decision, verdict.rule, verdict.code) == (default, "default", "no_rule")
    assert bool(verdict.reason) == (default != "allow")


def test_a_rule_is_about_the_tools_agents_kinds_and_effects_that_it_names() -> None:
    def allows(view: StepView, **about: object) -> bool:
        return policy(rule("a", "allow", **about)).decide(view).decision == "allow"

    assert allows(view(), tools=["write_*"])
    assert allows(view(), tools=["x", "w?ite_file"])
    assert allows(view(), tools=["[vw]rite_file"])
    assert not allows(view(), tools=["write"])
    assert not allows(view(), tools=["Write_*"]), "names are what they are"
    assert not allows(view_of("write_file\n"), tools=["write_file"])
    assert not allows(view_of("xwrite_file"), tools=["write_file", "y*"])
    assert allows(view(agent="ann"), agents=["a*"])
    assert not allows(view(agent="bob"), agents=["a*"])
    assert allows(view(), agents=[""])
    assert not allows(view(agent="ann"), agents=[""])
    assert allows(view(kind="model"), kinds=["model"])
    assert not allows(view(), kinds=["model"])
    assert allows(view(), effects=["pure", "write"])
    assert not allows(view(contract=READ), effects=["pure", "write"])


def test_the_rules_of_one_tool_are_not_those_of_another_that_took_its_place() -> None:
    made = policy(rule("a", "allow", tools=["tool_1"]))
    for number in range(3000):  # more than are kept, and many at one address
        verdict = made.decide(view_of(f"tool_{number % 2}", agent=f"agent {number % 1500}"))
        assert (verdict.decision == "allow") == (number % 2 == 1)
    gc.collect()


def test_many_threads_decide_at_once() -> None:
    made = policy(
        rule("mine", "allow", when='args.path == "/" + string(args.size)'),
        rule("large", "deny", when="args.size > 150"),
        rule("seen", "deny", when='args.path.matches("x") || !within(args.path, "/")'),
    )
    ready = threading.Barrier(8)

    def ask(start: int) -> list[str]:
        ready.wait()
        sizes = range(start, 200, 8)
        views = [view(data={"path": f"/{size}", "size": size}) for size in sizes]
        return [f"{size}{made.decide(each).rule}" for size, each in zip(sizes, views, strict=True)]

    with ThreadPoolExecutor(8) as pool:
        found = [each for several in pool.map(ask, range(8)) for each in several]
    assert sorted(found) == sorted(f"{n}{'large' if n > 150 else 'mine'}" for n in range(200))


# --- what conditions see -------------------------------------------------------------------------


class Run:
    id, name, calls, tokens, cost, elapsed = "r-1", "job", 7, 100, 0.5, 12


@pytest.mark.parametrize(
    "when",
    [
        'args.path == "/usr/a" && args.size == 1 && size(args) == 2',
        '"path" in args && !("other" in args) && args["size"] in [1, 2]',
        "has(args.path) && !has(args.other)",
        'tool.name == "write_file" && tool.version == "" && tool.kind == "tool"',
        'tool.effect == "write" && tool.risk == "high" && "disk" in tool.permissions',
        "!tool.reversible && !tool.idempotent",
        'agent.name == "ann"',
        'run.id == "r-1" && run.name == "job" && run.calls == 7 && run.tokens == 100',
        "run.cost == 0.5 && run.elapsed < 12.5 && double(run.calls) == 7.0",
        '"untrusted" in labels && size(labels) == 2 && labels.all(l, l != "secret")',
        'const.root == "/usr" && const.sizes.exists(s, s == args.size) && const["a"].b == 1.5',
        'args.path.matches("^/u") && args.path.matches(r"\\w$") && !args.path.matches("^a$")',
        'within(args.path, const.root) && args.path.glob("/usr/*") && lower("A") == "a"',
        "type(args.size) == int && type(args.path) == string",
        "['path', 'size', 'x'].all(n, !(n in args) || args[n] != null)",
    ],
)
def test_conditions_see_the_call_its_tool_its_run_and_the_constants(when: str) -> None:
    constants = "[constants]\nroot = '/usr'\nsizes = [1, 2]\na = { b = 1.5 }\n"
    made = policy(f"[[rules]]\nid = 'a'\ndecision = 'allow'\nwhen = '''{when}'''\n", tail=constants)
    labels = frozenset({"untrusted", "other"})
    assert made.decide(view(agent="ann", run=Run(), labels=labels, calls=3)).decision == "allow"


def test_without_a_run_there_is_nothing_spent() -> None:
    when = 'run.id == "" && run.calls == 3 && run.tokens == 0 && run.cost == 0.0'
    assert policy(rule("a", "allow", when=when)).decide(view(calls=3)).decision == "allow"


def test_each_call_is_seen_as_it_is() -> None:
    made = policy(rule("a", "allow", when='has(args.path) && args.path == "x"'))
    for data, decision in [({"path": "x"}, "allow"), ({}, "deny"), ({"path": "y"}, "deny")] * 3:
        assert made.decide(view(data=data)).decision == decision


# --- explain -------------------------------------------------------------------------------------


def test_explain_tells_what_became_of_each_rule() -> None:
    made = policy(
        rule("other", "deny", tools=["other"]),
        rule("agent", "deny", agents=["ann"]),
        rule("kind", "deny", kinds=["model"]),
        rule("effect", "deny", effects=["read"]),
        rule("always", "allow"),
        rule("not", "deny", when="args.size > 5"),
        rule("fails", "allow", when="args.gone == 1"),
        rule("number", "allow", when="args.size"),
        rule("deny", "deny", when="args.size == 1"),
    )
    found = made.explain(view())
    assert [(e.rule.id, e.passed_over, e.holds, e.error) for e in found] == [
        ("other", "tools", None, ""),
        ("agent", "agents", None, ""),
        ("kind", "kinds", None, ""),
        ("effect", "effects", None, ""),
        ("always", "", True, ""),
        ("not", "", False, ""),
        ("fails", "", None, "there is no 'gone'; ask `has(…)` first"),
        ("number", "", None, "it returns no bool"),
        ("deny", "", True, ""),
    ]
    assert [e.rule.id for e in found if e.decides] == ["fails"] == [made.decide(view()).rule]
    assert found[0].rule.where == "policy"
    assert found[1].rule.line > found[0].rule.line > 1


def test_explain_and_decide_agree() -> None:
    for decisions in (["allow", "ask"], ["ask", "deny", "deny"], ["allow"], []):
        made = policy(*(rule(str(number), each) for number, each in enumerate(decisions)))
        decides = [e.rule.id for e in made.explain(view()) if e.decides]
        assert (decides or ["default"]) == [made.decide(view()).rule]


# --- the file ------------------------------------------------------------------------------------

TOML = """
version = 1 # of the format
name = "support"
default = "ask"
mode = "shadow"
flow = "run"
[constants]
root = "/srv"
[[rules]]
id = "a"
tools = ["write_*"]
when = 'args.path == const.root'
decision = "deny"
reason = "no"
[[presets]]
use = "workspace"
root = "/srv"
tools = ["move_*"]
[[presets]]
use = "budget"
calls = 10
[[limits.rules]]
id = "few"
tokens = 100
[limits.loops]
same = 3
[labels]
"fetch_*" = ["untrusted", "page"]
[approval]
expires = "15 min"
approvers = ["ann"]
[prices]
send = 0.05
[prices.models."m-*"]
input = 1
output = 2.0
"""
YAML = """
version: 1
rules:
- {decision: deny, reason: "no", id: a, when: args.path == const.root, tools: ["write_*"]}
presets:
- {use: workspace, tools: ["move_*"], root: /srv}
- use: budget
  calls: 10
limits: {loops: {same: 3}, rules: [{id: few, tokens: 100}]}
labels:
  fetch_*: [page, untrusted]
prices: {models: {"m-*": {output: 2, input: 1.0}}, send: 0.05}
approval:
  approvers: [ann]
  expires: 15 min
constants:
  root: /srv
flow: run
name: support
default: ask
mode: shadow
"""


@pytest.mark.parametrize(("form", "text"), [("toml", TOML), ("yaml", YAML)])
def test_toml_and_yaml_say_the_same(form: Literal["toml", "yaml"], text: str) -> None:
    made = Policy.parse(text, form=form)
    assert (made.name, made.default, made.mode, made.flow) == ("support", "ask", "shadow", "run")
    assert [each.id for each in made.rules] == ["workspace/outside", "workspace/inside", "a"]
    assert [each.id for each in made.limits.rules] == ["budget/calls", "few"]
    assert made.limits.loops is not None
    assert made.limits.loops.same == 3
    assert made.labels == {"fetch_*": ("page", "untrusted")}
    assert made.approval.seconds == 900
    assert made.approval.approvers == ["ann"]
    assert made.prices.of("tool", "send").call == 50_000_000_000
    assert made.prices.of("model", "m-1").output == 2_000_000
    assert made.constants == {"root": "/srv"}
    assert made.digest == Policy.parse(TOML).digest
    assert repr(made) == f"<Policy 'support': 3 rules, {made.digest[:12]}>"


def test_what_is_left_out_is_strict() -> None:
    made = Policy.parse("version = 1")
    assert (made.name, made.default, made.mode, made.flow) == ("", "deny", "enforce", "value")
    assert made.rules == ()
    assert not made.limits
    assert made.approval.seconds == 86400
    assert made.approval.approvers is None


def test_a_byte_order_mark_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.YML"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\r\nname: a\r\n")
    assert Policy.load(path).name == "a"
    assert Policy.parse("\ufeffversion = 1\nname = 'a'").name == "a"


def test_a_policy_never_changes() -> None:
    made = Policy.parse(TOML)
    with pytest.raises(AttributeError):
        made.default = "allow"
    with pytest.raises(dataclasses.FrozenInstanceError):
        cast("Any", made.rules[0]).verdict = made.rules[1].verdict
    with pytest.raises(TypeError):
        cast("dict[str, Any]", made.constants)["root"] = ()
    with pytest.raises(TypeError):
        cast("dict[str, Any]", made.labels)["send"] = ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"support"', '"other"'),
        ('default = "ask"', 'default = "deny"'),
        ('"shadow"', '"enforce"'),
        ('"run"', '"off"'),
        ('root = "/srv"\n[[rules]]', 'root = "/srv/"\n[[rules]]'),
        ('id = "a"', 'id = "b"'),
        ("== const", "!= const"),
        ('reason = "no"', 'reason = "No"'),
        ("calls = 10", "calls = 11"),
        ("same = 3", "same = 4"),
        ('"page"', '"pages"'),
        ("15 min", "16 min"),
        ('["ann"]', '["bob"]'),
        ("0.05", "0.06"),
    ],
)
def test_the_digest_covers_every_field(old: str, new: str) -> None:
    assert TOML.count(old) == 1
    assert Policy.parse(TOML.replace(old, new)).digest != Policy.parse(TOML).digest


def test_the_digest_tells_kinds_of_numbers_apart_that_conditions_do() -> None:
    def digest(value: str) -> str:
        return Policy.parse(f"version = 1\n[constants]\nn = {value}\n").digest

    assert len({digest(value) for value in ("1", "1.0", "true", '"1"')}) == 4


def test_presets_go_with_rules_and_ask_for_no_more_than_they_need() -> None:
    made = policy(
        rule("large", "ask", when="args.size > 5", tools=["write_*"]),
        tail="""
[[presets]]
use = "workspace"
root = "/usr"
tools = ["write_*"]
[[presets]]
use = "network"
hosts = ["example.com"]
tools = ["fetch"]
[[presets]]
use = "read-only"
tools = ["x_*"]
[[presets]]
use = "reversible-only"
tools = ["y_*"]
[[presets]]
use = "reversible-only"
name = "strict"
otherwise = "deny"
tools = ["z_*"]
""",
    )
    huge = "x" * 10_000_000  # nothing asks for it
    for path, size, by in [
        ("/usr/a", 1, "inside"),
        ("/etc/a", 1, "outside"),
        ("/usr/a", 6, "large"),
    ]:
        verdict = made.decide(view(data={"path": path, "size": size, "content": huge}))
        assert verdict.rule.removeprefix("workspace/") == by
    assert made.decide(view_of("y_1")).rule == "reversible-only/irreversible"
    assert made.decide(view_of("z_1")).rule == "reversible-only/strict/irreversible"


# --- includes ------------------------------------------------------------------------------------


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name}.toml"
        path.write_text(f"version = 1\n{text}\n")
    return folder / "policy.toml"


def test_rules_of_included_files_come_first_and_files_add_up(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text(
        "version: 1\nrules: [{id: base, decision: allow, when: args.size > const.own}]\n"
        "constants: {both: 1}\nlabels: {fetch: [a]}\n"
    )
    path = write(
        tmp_path / "sub",
        policy=f"include = ['one.toml', 'two.toml']\n{rule('own', 'allow')}"
        "[constants]\nown = 1\nboth = 1\n[labels]\nfetch = ['b']\n[limits.loops]\nsame = 2\n",
        one=f"include = ['../base.yaml']\n{rule('one', 'allow')}\n[prices]\nsend = 1\n",
        two=f"include = ['../base.yaml']\n{rule('two', 'allow')}\n"
        "[[limits.rules]]\nid = 'few'\ncalls = 1\n[prices]\nfetch = 1",
    )
    made = Policy.load(path)
    assert [each.id for each in made.rules] == ["base", "one", "two", "own"]
    assert [os.path.relpath(each.where, tmp_path) for each in made.rules] == [
        "base.yaml", "sub/one.toml", "sub/two.toml", "sub/policy.toml",
    ]  # fmt: skip
    assert made.rules[0].line == 2
    assert made.constants == {"both": 1, "own": 1}
    assert made.labels == {"fetch": ("a", "b")}
    assert made.limits.loops is not None
    assert [each.id for each in made.limits.rules] == ["few"]
    assert made.prices.calls == {"send": 1, "fetch": 1}
    assert made.digest == Policy.parse(path.read_text(), base=path.parent).digest


def test_a_file_says_itself_what_it_does_not_want_to_inherit(tmp_path: Path) -> None:
    base = (
        "default = 'ask'\nflow = 'run'\nname = 'base'\nmode = 'shadow'\n[approval]\nexpires = '1 h'"
    )
    inherits = Policy.load(write(tmp_path, base=base, policy="include = ['base.toml']"))
    assert (inherits.default, inherits.flow, inherits.approval.seconds) == ("ask", "run", 3600)
    assert (inherits.name, inherits.mode) == ("", "enforce"), "no included file ends enforcement"
    own = "include = ['base.toml']\ndefault = 'deny'\nflow = 'value'\n[approval]\nexpires = '2 h'"
    says = Policy.load(write(tmp_path, base=base, policy=own))
    assert (says.default, says.flow, says.approval.seconds) == ("deny", "value", 7200)


def test_the_file_of_a_rule_does_not_change_the_digest(tmp_path: Path) -> None:
    one, two = rule("one", "allow"), rule("two", "ask")
    path = write(tmp_path, base=one, policy=f"include = ['base.toml']\n{two}")
    assert Policy.load(path).digest == policy(one, two).digest
    assert Policy.load(path).digest != policy(two, one).digest


def test_a_policy_that_can_not_be_loaded_leaves_the_one_before_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, policy=rule("a", "allow"))
    made = Policy.load(path)
    path.write_text("version = 1\nrules = 5\n")
    with pytest.raises(errors.PolicyInvalid):
        Policy.load(path)
    assert made.decide(view()).decision == "allow"
