"""Templates, JSON, checksums and search: what they make, and what they refuse."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage_toolbox import InputRefused, LimitExceeded, NotText, text

# --- templates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("Dear {{ who.name }},", "Dear Ann,"),
        ("{{ who['name']|upper }} {{ items[0] }} {{ items[-1] }} {{ who.name[:2] }}", "ANN 3 5 An"),
        ("{% for i in items %}{{ loop.index }}={{ i }};{% endfor %}", "1=3;2=4;3=5;"),
        ("{% for i in items if i is odd %}{{ i }}{% else %}none{% endfor %}", "35"),
        ("{% for k, v in who|dictsort %}{{ k }}:{{ v }} {% endfor %}", "age:7 name:Ann "),
        ("{% if who.age > 6 and 'name' in who %}old{% else %}young{% endif %}", "old"),
        ("{% set x = 2 %}{{ x * 3 + 1 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ -x }}", "7 3 3 -2"),
        (
            "{{ items|join(', ') }} {{ items|sum }} {{ who|tojson }}",
            '3, 4, 5 12 {"name": "Ann", "age": 7}',
        ),
        ("{{ 'a' ~ who.age ~ none }} {{ 'a' + 'b' }}", "a7 ab"),
        ("{{ nothing|default('-') }} {{ 'x-y'|replace('-', '+') }}", "- x+y"),
        ("{{ 'yes' if who.age in [7, 8] else 'no' }}\n", "yes\n"),
        ("{# a note #}<b>{{ '<i>' }}</b>", "<b><i></b>"),
    ],
)
def test_templates_render(template: str, made: str) -> None:
    values = {"who": {"name": "Ann", "age": 7}, "items": [3, 4, 5]}
    assert text.render_template(template, values) == made


@pytest.mark.parametrize(
    "template",
    [
        "{{ missing }}", "{{ who.missing }}", "{{ who }}", "{{ items }}", "{% if %}", "{{ 1 / 0 }}",
        "{{ ''.__class__ }}", "{{ who.__class__.__mro__ }}", "{{ items.append }}", "{{ loop }}",
        "{{ items.append(1) }}", "{{ ''.join(items) }}", "{{ range(9) }}", "{{ self }}",
        "{{ cycler.__init__.__globals__ }}", "{{ lipsum }}", "{{ config }}", "{{ namespace() }}",
        "{{ who|attr('__class__') }}", "{{ '%s'|format(1) }}", "{{ items|map('upper')|list }}",
        "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
        "{% block a %}{% endblock %}",
        "{% macro m() %}{% endmacro %}", "{% call m() %}{% endcall %}",
        "{% filter upper %}{% endfilter %}",
        "{% set x %}a{% endset %}", "{% with a = 1 %}{% endwith %}", "{{ 2 ** 9 }}",
        "{{ {'a': 1} }}",
        "{{ [[1]] }}", "{{ 'a' * 9 }}", "{{ [1] + [2] }}", "{{ '%s' % 1 }}", "{{ items|random }}",
        "{{ who['__class__'] }}", "{{ items|tojson(indent=9) }}", "{{ 'a'|center(9) }}",
        "{% for x in items recursive %}{{ loop(x) }}{% endfor %}", "{{ 1|frobnicate }}",
        "{{ 5|join }}",
    ],
)  # fmt: skip
def test_templates_refuse_what_is_not_theirs(template: str) -> None:
    with pytest.raises(InputRefused):
        text.render_template(template, {"who": {"name": "Ann"}, "items": [1]})


NINES = "".join(f"{{% for a{n} in items %}}" for n in range(9)) + "{% endfor %}" * 9
DOUBLING = "{% set a0 = 'xxxxxxxxxx' %}" + "".join(
    f"{{% set a{n + 1} = a{n} OP a{n} %}}" for n in range(60)
)


@pytest.mark.parametrize(
    "template",
    [
        "x" * 65_537,
        NINES,
        DOUBLING.replace("OP", "~"),
        DOUBLING.replace("OP", "+"),
        DOUBLING.replace("'xxxxxxxxxx'", "10").replace("OP", "*"),
        "{{ big|replace('x', big)|replace('x', big) }}",
        "{% for i in items %}{{ big }}{% endfor %}",
        "{% for i in items %}{% set x = big|upper %}{% endfor %}",
        "{{ items|join(big) }}",
        "{% for i in items %}{% for j in items %}{{ items|sort|first }}{% endfor %}{% endfor %}",
        "{% for i in items %}{% for j in items if false %}{% endfor %}{% endfor %}",
        "{% for i in items %}{% for j in items if 'y' in big %}{% endfor %}{% endfor %}",
        "{% for i in items %}{% for j in items %}{{ many[1:] == i }}{% endfor %}{% endfor %}",
    ],
    ids=range(13),
)
def test_templates_do_not_run_away(template: str) -> None:
    with pytest.raises(LimitExceeded):
        text.render_template(
            template, {"big": "x" * 20_000, "items": list(range(400)), "many": list(range(100_000))}
        )


# --- JSON ----------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.integers(0, 8), st.booleans())
def test_json_comes_back_from_each_form(value: Any, indent: int, sort: bool) -> None:
    formatted = text.json_format(json.dumps(value), indent=indent, sort_keys=sort)
    assert text.json_parse(formatted) == value


@pytest.mark.parametrize(
    "wrong", ['{"a": 1, "a": 2}', "NaN", "[Infinity]", "{", "", "'a'", "[1,]", "1" * 5000]
)
def test_json_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(InputRefused):
        text.json_parse(wrong)


def test_json_has_limits() -> None:
    assert text.json_parse("[" * 90 + "]" * 90)
    for wrong in ("[" * 91 + "1" + "]" * 91, "[" * 100_000, " " * (4 * 2**20 + 1)):
        with pytest.raises((LimitExceeded, InputRefused)):
            text.json_parse(wrong)


def test_a_pointer_names_one_part() -> None:
    given_text = '{"a/b": {"~": [10, {"": 1}]}, "0": "zero"}'
    assert text.json_query(given_text, "/a~1b/~0/0") == 10
    assert text.json_query(given_text, "/a~1b/~0/1/") == 1
    assert text.json_query(given_text, "/0") == "zero"
    assert text.json_query(given_text, "") == json.loads(given_text)
    for pointer in ("a", "/b", "/a~1b/~0/2", "/a~1b/~0/00", "/a~1b/~0/-1", "/0/0"):
        with pytest.raises(InputRefused, match=r"Pointer|nothing is called"):
            text.json_query(given_text, pointer)


# --- checksums and search ------------------------------------------------------------------------


def test_checksums() -> None:
    assert text.checksum("ä") == hashlib.sha256("ä".encode()).hexdigest()
    assert text.checksum("AP8=", "md5", "base64") == hashlib.md5(b"\x00\xff").hexdigest()  # noqa: S324 - what is asked for
    with pytest.raises(NotText):
        text.checksum("?", encoding="base64")
    with pytest.raises(NotText):
        text.checksum("\ud800")


def test_lines_are_found() -> None:
    found = text.find_text("One\r\ntwo\none", "one")
    assert found == [{"line": 3, "text": "one"}]
    assert text.find_text("One\r\ntwo\none", "ONE", ignore_case=True) == [
        {"line": 1, "text": "One"},
        *found,
    ]
    with pytest.raises(InputRefused):
        text.find_text("a", "")
    with pytest.raises(LimitExceeded):
        text.find_text("a\n" * 1001, "a")


def test_text_is_replaced_everywhere() -> None:
    assert text.replace_text("aXbX", "X", "--") == {"text": "a--b--", "replaced": 2}
    with pytest.raises(InputRefused):
        text.replace_text("a", "", "b")
    with pytest.raises(LimitExceeded):
        text.replace_text("a" * 10_000, "a", "b" * 1000)


def test_all_of_them_are_pure() -> None:
    for tool in text.TOOLS:
        contract: Any = vars(tool)["__rollcage_contract__"]
        assert (contract.effect, contract.version) == ("pure", "1")
        assert contract.description
