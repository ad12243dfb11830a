"""Conditions that loop or fail, and policy files that are broken or bombs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from tests.hostile.case import Case, Category, Place, rule

# --- conditions ----------------------------------------------------------------------------------

# Each with the value that the tool is called with.
FAILING: list[tuple[str, Any]] = [
    # no bool
    ("1", 1), ('"true"', 1), ("null", 1), ("[true]", 1), ("args.value", "true"), ("args.value", 1),
    ("args.value", None), ("args", 1), ("{}", 1), ("type(true)", 1),
    # nothing there
    ("args.nothing == 1", 1), ("args.value.nothing", {}), ("args.value[3] == 1", [1]),
    ('args.value["x"]', {"y": True}), ("run.nothing > 1", 1), ("tool.nothing", 1),
    ("const.nothing", 1), ("unknown == 1", 1), ("nothing(args.value)", 1), ("os.system('x')", 1),
    ("__import__('os')", 1), ("args.__class__ == 1", 1), ("args.value.__class__ == 1", "x"),
    # other kinds
    ("args.value > 1", "2"), ("args.value + 1 > 1", "2"), ("args.value && true", 1),
    ("!args.value", 1), ("args.value ? true : true", 1), ("args.value < null", 1),
    ("args.value.startsWith(1)", "1"), ("args.value.size() > 0", 5), ("args.value in 5", 5),
    ("size(args.value) >= 0", 1), ("-args.value < 0", "x"), ("args.value.all(x, true)", "text"),
    ("int(args.value) > 0", "x"), ("double(args.value) > 0.0", []),
    ("timestamp(args.value) != null", "x"),
    ("duration(args.value) != null", "x"), ("args.value == 1 || args.value > 1", "x"),
    # arithmetic
    ("args.value / 0 == 0", 1), ("args.value % 0 == 0", 1), ("args.value * args.value > 0", 2**62),
    ("args.value + args.value > 0", 2**62), ("-args.value < 0 || args.value < 0", 10**30),
    ("args.value > 0", float("nan")), ("9223372036854775808 > args.value", 1), ("args.value > 0",
    2**64),
    ("int(args.value) > 0", 1e300), ("uint(args.value) >= 0u", -1),
    # functions of the gate's own that raise
    ("within(args.value, 'relative')", "x"), ("within(args.value)", "/x"), ("within()", "/x"),
    ("within(args.value, '/', '/', '/')", "/x"), ("host(args.value) != ''", "not a url"),
    ("public_host(args.value)", "127.1"), ("named(args.value)", "x"), ("glob(args.value, 1)", "x"),
    ("command(args.value)[0] == 'ls'", "ls; x"), ("command(args.value)[9] == 'ls'", "ls"),
    ("lower(args.value) != ''", 5), ("sql_reads_only(args.value, 'oracle')", "select 1"),
    ("secret(args.value, 1)", "x"), ("host_in(args.value, 'x')", "x"),
    # syntax
    ("", 1), (" ", 1), ("args.value ==", 1), ("(args.value == 1", 1), ("args.value = 1", 1),
    ("args.value === 1", 1), ("true;", 1), ("true true", 1), ("if true", 1), ("lambda: true", 1),
    ("'unclosed", 1), ("args..value == 1", 1), (".value", 1),
    ("args.value.matches('(')", "x"), ("args.value.matches(args.value)", "x"), ("@", 1), ("\0", 1),
    ("\u0430rgs.value == 1", 1), ("true\u200b", 1), ("tr\u00fce", 1), ("\uff54rue", 1),
]  # fmt: skip

LOOPING: list[tuple[str, Any]] = [
    ("args.value.all(x, args.value.all(y, args.value.all(z, x + y + z > 0)))", list(range(1, 200))),
    ("args.value.all(x, args.value.all(y, x + y > 0))", list(range(1, 9_000))),
    ("args.value.map(x, args.value.map(y, args.value)).size() > 0", list(range(5_000))),
    ("args.value.map(x, args.value).map(x, args.value).size() > 0", list(range(9_000))),
    ("args.value.filter(x, args.value.exists(y, y == x)).size() > 0", list(range(9_000))),
    ("args.value.all(x, x in args.value)", list(range(9_500))),
    ("args.value.all(x, true)", list(range(200_000))),
    ("[args.value, args.value].all(x, x.all(y, x.all(z, y + z > 0)))", list(range(1, 9_000))),
    ("args.value.map(x, x + x + x + x + x + x + x).map(x, x + x + x + x + x).size() > 0",
     ["x" * 50_000] * 40),
    ("(" * 3_000 + "true" + ")" * 3_000, 1), ("!" * 6_000 + "true", 1), ("[" * 100 + "]" * 100, 1),
    ("[" * 40 + "]" * 40 + " == []", 1), ("-" * 4_097 + "1 < 0", 1),
    ("args.value" + ".a" * 2_000 + " == 1", {"a": 1}), ("args.value" + "[0]" * 300 + " == 1",
    [[1]]),
    ("1" + " + 1" * 1_100 + " > 0", 1), ("true" + " && true" * 600, 1),
    ("true ? " * 500 + "true" + " : true" * 500, 1), ("args.value == 1" + " || false" * 500, 1),
    ("args.value.matches('" + "(a+)+" * 2_000 + "$')", "a" * 100),
    ("args.value.matches('(a{1000}){1000}')", "a" * 100), ("'" + "x" * 5_000 + "' != ''", 1),
    ("args.value.matches('^(a|aa|aaa)*$')", "a" * 3_000_000 + "b"),
    ("[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, a + b + c > 0)))",
    1),
]  # fmt: skip

HOLDING: list[tuple[str, Any]] = [
    ("true", 1), ("args.value == 1", 1), ("args.value == 1.0", 1.0), ("args.value == 'x'", "x"),
    ("has(args.value) && !has(args.nothing)", 1), ("'value' in args", 1), ("args.value == null",
    None),
    ("args.value.a.b[1] == true", {"a": {"b": [0, True]}}), ("args['value'] == 1", 1),
    ("size(args.value) == 3", "abc"), ("args.value.all(x, x > 0)", list(range(1, 2_000))),
    ("args.value.exists(x, x == 7) && args.value.exists_one(x, x == 7)", list(range(100))),
    ("args.value.map(x, x * 2).filter(x, x > 6).size() == 6", list(range(10))),
    ("args.value.all(x, args.value.exists(y, y == x))", list(range(50))),
    ("args.value.matches('^(a+)+$')", "a" * 10_000), ("args.value.matches('^(a|aa)+b$')",
    "a" * 99 + "b"),
    ("args.value.startsWith('a') && args.value.endsWith('c') && args.value.contains('b')", "abc"),
    ("args.value in ['a', 'b'] || args.value in {'c': 1}", "c"),
]  # fmt: skip

ENDING: list[tuple[str, Any]] = [
    ("args.value > 1 ? true : false", 2),
    ("tool.name == 'put' && tool.effect == 'write' && !tool.reversible", 1),
    ("run.calls >= 0 && run.elapsed >= 0.0 && run.cost == 0.0", 1), ("labels == []", 1),
    ("args.value == 'x' || args.nothing == 1", "x"), ("type(args.value) == string", "x"),
    ("glob(lower(trim(args.value)), 'a*c')", " ABC "), ("-args.value < 0", 5),
    ("// a comment\ntrue\n", 1), ("args.value == 'const args.nothing'", "const args.nothing"),
    ("timestamp(args.value) < timestamp('2030-01-01T00:00:00Z')", "2020-01-01T00:00:00Z"),
    ("int(args.value) + 1 == 6 && string(5) == args.value", "5"), ("((((true))))", 1),
]  # fmt: skip


def policies(place: Place) -> Iterator[Category]:
    for name, hostile, harmless in (("fails", FAILING, HOLDING), ("loops", LOOPING, ENDING)):
        attacks, twins = ([_put(*each) for each in several] for several in (hostile, harmless))
        yield Category(f"cel: {name}", attacks, twins)
    yield Category("cel: denies fail", _failing_denies(), _working_denies())
    yield Category(
        "files: toml", [_with(each) for each in TOML], [_with(each) for each in GOOD_TOML]
    )
    yield Category(
        "files: yaml",
        [_with(each, "yaml") for each in YAML],
        [_with(each, "yaml") for each in GOOD_YAML],
    )


def _put(condition: str, value: Any) -> Case:
    return Case("put", {"value": value}, rule("put", condition))


def _with(policy: str, form: Literal["toml", "yaml"] = "toml") -> Case:
    return Case("put", {"value": 1}, policy, form)


# --- rules that deny, and fail: no other rule may allow what they could not look at --------------

BESIDE = '[[rules]]\nid = "all"\ndecision = "allow"\n'


def _failing_denies() -> list[Case]:
    conditions: list[tuple[str, Any]] = [
        ("args.value > 5", "x"), ("args.nothing == 1", 1), ("!within(args.value, '/srv')", "a\0b"),
        ("!public_host(host(args.value))", "http://0x7f.1/"), ("args.value / 0 == 1", 1),
        ("args.value", "text"), ("named(args.value)", "x"), ("args.value == 'bad'", "bad"),
        ("args.value.exists(x, x == 'bad')", [1, "bad"]), ("args.value.exists(x, x > 5)", [1, "x"]),
        ("command(args.value)[0] == 'rm'", "ls; rm x"), ("args.value > 0", 10**40),
        ("port(args.value) != 443", "https://h:65536/"), ("scheme(args.value) != 'https'", "//h/"),
    ]  # fmt: skip
    return [Case("put", {"value": value}, _denying(each)) for each, value in conditions]


def _working_denies() -> list[Case]:
    conditions: list[tuple[str, Any]] = [
        ("args.value > 5", 5), ("has(args.nothing)", 1), ("!within(args.value, '/')", "/a/b"),
        ("!public_host(host(args.value))", "http://8.8.8.8/"), ("args.value == 'bad'", "good"),
        ("args.value.exists(x, x == 'bad')", ["good"]), ("command(args.value)[0] == 'rm'", "ls"),
        ("args.value == 1", "1"), ("port(args.value) != 443", "https://h/"),
        ("scheme(args.value) != 'https'", "HTTPS://h/"),
    ]  # fmt: skip
    return [Case("put", {"value": value}, _denying(each)) for each, value in conditions]


def _denying(condition: str) -> str:
    held = rule("put", condition, code="held", reason="held").replace('"allow"', '"deny"')
    return f"{held}\n{BESIDE}"


# --- files ---------------------------------------------------------------------------------------

ALLOW = '[[rules]]\nid = "a"\ndecision = "allow"\n'
TOML = [
    "", " ", "# nothing", "version = 1", 'version = 1\ndefault = "deny"', "version = 2\n" + ALLOW,
    'version = "1"\n' + ALLOW, ALLOW, "version = 1\nversion = 1\n" + ALLOW,
    "version = true\n" + ALLOW,
    'version = 1\ndefault = "Allow"', "version = 1\ndefault = true",
    'version = 1\ndefault = ["allow"]',
    'version = 1\ndefalut = "allow"\n' + ALLOW, 'version = 1\nmode = "off"\n' + ALLOW,
    'version = 1\nmode = "Shadow"\n' + ALLOW, "version = 1\n[rules]\nid = 'a'\ndecision = 'allow'",
    'version = 1\n[[rules]]\nid = "a"', 'version = 1\n[[rules]]\ndecision = "allow"',
    "version = 1\n" + ALLOW + ALLOW, 'version = 1\n[[rules]]\nid = ""\ndecision = "allow"',
    "version = 1\n" + ALLOW + 'wehn = "false"', "version = 1\n" + ALLOW + "when = true",
    "version = 1\n" + ALLOW + "when = ''", "version = 1\n" + ALLOW + 'tools = "put"',
    "version = 1\n" + ALLOW + "tools = [1]", "version = 1\n" + ALLOW + "effects = ['writes']",
    "version = 1\n" + ALLOW + "kinds = ['tools']", "version = 1\n" + ALLOW + "tools = []",
    'version = 1\n[[rules]]\nid = "a"\ndecision = "permit"', "version = 1\n[[rules]]\nid = 1",
    'version = 1\n[[rules]]\nid = "a"\ndecision = "deny"\n' + ALLOW,
    "version = 1\ninclude = ['/x.toml']",
    'version = 1\ninclude = ["missing.toml"]\n' + ALLOW, "version = 1\ninclude = 'x'\n" + ALLOW,
    'version = 1\n[[presets]]\nuse = "everything"\n' + ALLOW, "version = 1\n[[presets]]\n" + ALLOW,
    'version = 1\n[[presets]]\nuse = "workspace"\n' + ALLOW,
    "version = 1\npresets = ['read-only']\n" + ALLOW,
    'version = 1\n[[presets]]\nuse = "workspace"\nroot = "relative"\ntools = ["*"]\n' + ALLOW,
    'version = 1\n[[presets]]\nuse = "network"\nhosts = ["127.1"]\ntools = ["*"]\n' + ALLOW,
    'version = 1\n[[presets]]\nuse = "budget"\n' + ALLOW, 'version = 1\nflow = "maybe"\n' + ALLOW,
    'version = 1\n[[presets]]\nuse = "budget"\ncalls = -1\n' + ALLOW, "version = 1\n\0" + ALLOW,
    "version = 1\n" + ALLOW + 'x = """' + "a" * 100, "version = 1\n" + ALLOW[:-3], "{}", "[]",
    "null",
    "version = 1\na = " + "[" * 5_000 + "]" * 5_000 + "\n" + ALLOW,
    "\ufeffversion = 1\n\u202e" + ALLOW,
    "version = 1\n" + "".join(f"[a.b{n}]\n" for n in range(300)) + ALLOW,
    "version = 1\n" + "a" * 100_000 + " = 1\n" + ALLOW, "version = 1\r" + ALLOW.replace("\n", "\r"),
    "version = 1" + ".a" * 3_000 + " = 1\n" + ALLOW, "version = 1e0\n" + ALLOW,
    "version = nan\n" + ALLOW,
    "version = 1\nconstants = 5\n" + ALLOW, "version = 1\n" + ALLOW + "when = 'const.x'",
]  # fmt: skip

GOOD_TOML = [
    "version = 1\n" + ALLOW, 'version = 1\ndefault = "allow"', "version = 1\r\n" + ALLOW,
    '# a comment\nversion = 1 # and one\n\n[[rules]]\n"id" = \'a\'\ndecision = """allow"""\n',
    'version = 1\nname = "größe"\nmode = "enforce"\nflow = "off"\n' + ALLOW,
    "version = 1\n[constants]\nx = true\ny = [1, 2]\n" + ALLOW + "when = 'const.x && 2 in const.y'",
    "version = 1\n" + ALLOW + 'tools = ["p*t"]\neffects = ["write"]\nkinds = ["tool"]\n',
    "version = 1\n" + ALLOW
    + '[[rules]]\nid = "b"\ntools = ["other"]\ndecision = "deny"\nreason = "x"',
    "version = 1\n" + "".join(ALLOW.replace('"a"', f'"r{n}"') for n in range(300)),
    'version = 1\n[[presets]]\nuse = "budget"\ncalls = 100\n' + ALLOW,
    'version = 1\n[[presets]]\nuse = "secrets"\n[[presets]]\nuse = "read-only"\ntools = ["x"]\n'
    + ALLOW,
]  # fmt: skip

RULES = "rules:\n  - id: a\n    decision: allow\n"
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)
MAPS = "\n".join(
    ["m0: &m0 {a: 1}"]
    + [f"m{n}: &m{n} {{{', '.join(f'k{k}: *m{n - 1}' for k in range(9))}}}" for n in range(1, 12)]
)
MERGES = "\n".join(
    ["m0: &m0 {k: 1}"]
    + [f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 9)}]" for n in range(1, 12)]
)
YAML = [
    "", "---", "null", "[]", "version: 1", "allow", f"version: 1\n{BOMB}\n{RULES}",
    f"version: 1\n{MAPS}\n{RULES}", f"version: 1\n{MERGES}\n{RULES}",
    f"version: 1\nconstants: &c\n  c: *c\n{RULES}",
    f"version: 1\nconstants:\n  x: &x [*x]\n{RULES}",
    "version: 1\nrules: &r\n  - id: a\n    decision: allow\n  - *r",
    f"version: 1\nversion: 1\n{RULES}", f"version: 1\n{RULES}default: allow\ndefault: deny\n",
    "version: 1\nrules:\n  - id: a\n    decision: deny\n    decision: allow\n",
    "version: 1\nrules:\n  - {id: a, decision: allow, when: 'false', when: 'true'}\n",
    f"version: 1\nx: !!python/object/apply:os.system ['touch x']\n{RULES}",
    f"version: 1\nx: !!python/name:os.system\n{RULES}",
    f"version: 1\nx: !!python/tuple [1]\n{RULES}",
    f"version: 1\nx: !!python/object/new:tuple [[1]]\n{RULES}",
    f"version: 1\nx: !custom y\n{RULES}",
    f"version: 1\nname: !!binary aGVsbG8=\n{RULES}",
    f"version: 1\nconstants:\n  x: !!set {{a, b}}\n{RULES}",
    f"version: yes\n{RULES}", f"version: '1'\n{RULES}", f"version: 1.0\n{RULES}",
    f"version: 0x2\n{RULES}",
    f"version: 1\n{RULES}---\nversion: 1\n{RULES}", f"version: 1\n{RULES}...\nx: 1\n",
    "version: 1\nrules:\n  id: a",
    "version: 1\nrules:\n  - id: a\n    decision: no\n",
    "version: 1\nrules:\n  - id: no\n    decision: allow\n",
    "version: 1\ndefault: on\n",
    "version: 1\nrules:\n  - id: a\n    decision: allow\n    when: true\n",
    "version: 1\nrules:\n  - id: a\n    decision: allow\n    when: false\n",
    "\tversion: 1\n" + RULES,
    "version: 1\nrules:\n  - id: a\n    decision: allow\n    tools: put\n",
    "version: 1\n" + RULES.replace("  ", "\t"),
    "version: 1\nrules: [" + "[" * 3_000 + "]" * 3_000 + "]",
    "version: 1\nx: " + "{a: " * 3_000 + "}" * 3_000,
    "version: 1\nrules:\n  - id: a\n    decision: allow\n    remedy: [1]\n",
    "version: 1\n1: x\n" + RULES,
    "version: 1\n? [a, b]\n: c\n" + RULES, "version: 1\nnull: x\n" + RULES,
    "version: 1\n<<: 5\n" + RULES,
    "version: 1\n<<: {default: allow}\n", "%YAML 9.9\n---\nversion: 1\n" + RULES,
    "version: 1\n\0" + RULES,
    "version: 1\nconstants:\n  x: 2020-01-01\n  y: .nan\n  z: *nowhere\n" + RULES,
    "version: 1\n" + RULES + "  - *a\n",
    "version: 1\nconstants: {x: .inf}\n" + RULES,
    "%TAG ! tag:yaml.org,2002:python/\n---\nversion: !int 1\n" + RULES,
    "version: 1\n" + RULES + "# " + "x" * 3_000_000,
]  # fmt: skip

GOOD_YAML = [
    f"version: 1\n{RULES}", "version: 1\ndefault: allow\n", f"---\nversion: 1\n{RULES}...\n",
    "{version: 1, rules: [{id: a, decision: allow}]}", '{"version": 1, "default": "allow"}',
    f"# comment\nversion: 1 # one\nname: größe\n{RULES}", "version: 1\r\ndefault: allow\r\n",
    "version: 1\n" + RULES + "    when: >-\n      args.value == 1\n      && true\n",
    "version: 1\nconstants: {x: [1, 2]}\n" + RULES + "    when: 1 in const.x\n",
    "version: 1\nrules:\n  - id: a\n    tools: ['p*']\n    effects: [write]\n    decision: allow\n",
    "version: 1\npresets:\n  - use: secrets\n  - use: budget\n    calls: 10\n" + RULES,
]  # fmt: skip
