"""What a tool declares, and what becomes of arguments: validated, canonical, or refused."""

import functools
from pathlib import Path
from typing import Annotated, Any, cast
from zoneinfo import ZoneInfo

import pydantic
import pytest
from rollcage import ArgumentsInvalid, Contract, ContractError, Session, tool
from rollcage.contract.arguments import Validated, held_by
from rollcage.values.codec import TAG


def bound(contract: Contract, **arguments: Any) -> bytes:
    return contract.bind(arguments, str).digest_input  # no secret in it: nothing to seal


# --- declarations that can't be used -------------------------------------------------------------


def plain(a: int, b: str = "x") -> str:
    """Put two things together."""
    return f"{a}{b}"


def test_a_function_declares_its_own_name_words_and_types() -> None:
    contract = Contract.of(plain)
    assert (contract.name, contract.version, contract.effect) == ("plain", "", "write")
    assert contract.description == "Put two things together."
    assert contract.parameter_names == {"a", "b"}
    assert contract.returns is str
    assert contract.json_schema["required"] == ["a"]
    assert contract.json_schema["properties"]["b"]["default"] == "x"


def test_one_word_or_type_stands_for_a_list_of_one() -> None:
    contract = Contract.of(plain, permissions="net", raises=OSError, secret="b")
    assert contract.permissions == ("net",)
    assert contract.raises == (OSError,)
    assert contract.secret == {"b"}


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"effect": "reads"}, r"effect='reads' is none of \['pure', 'read', 'write', 'scope'\]"),
        ({"source": "live!"}, "source='live!' is none of"),
        ({"on_miss": "run"}, "on_miss='run' is none of"),
        ({"secret": ["c"]}, r"secret=\['c'\] names no parameter; it has \['a', 'b'\]"),
        ({"raises": ["OSError"]}, "raises='OSError' is not an exception type"),
        ({"raises": [KeyboardInterrupt]}, "is not an exception type"),
        ({"version": 2}, "version=2 is no text"),
        ({"risk": "a\ud800"}, "is no text"),
        ({"name": "a\ud800"}, "its parameters have no schema"),
        (
            {"efect": "read"},
            r"\['efect'\] are not options of a tool; those are: allow_empty, description, effect",
        ),
        ({"parameters": {}}, r"\['parameters'\] are not options"),
    ],
)
def test_a_declaration_that_can_not_be_used_is_refused_with_a_reason(
    declared: dict[str, Any], said: str
) -> None:
    with pytest.raises(ContractError, match=said):
        Contract.of(plain, **declared)


def positional_only(a: int, /) -> None: ...
def variadic(*a: int) -> None: ...
def underscored(_a: int) -> None: ...
def unresolvable(a: Any) -> None: ...
def no_syntax(a: Any) -> None: ...
def no_schema(a: ZoneInfo | object) -> None: ...
def reserved(model_config: int) -> None: ...


unresolvable.__annotations__["a"] = "Nothing"
no_syntax.__annotations__["a"] = "1 +"


class Shop:
    def buy(self, item: str, count: int = 1) -> str:
        return f"{count} {item}"

    @classmethod
    def open(cls, at: str) -> str:
        return at

    @staticmethod
    def close(at: str) -> str:
        return at


class Custom:
    pass


def custom(a: Custom) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional_only, "positional_only: parameter 'a' can't be passed by name"),
        (variadic, "variadic: parameter 'a' can't be passed by name"),
        (underscored, "parameter '_a' may not start with '_'"),
        (unresolvable, "its annotations can't be resolved: name 'Nothing'"),
        (no_syntax, "its annotations can't be resolved"),
        (custom, "its parameters have no schema: Unable to generate pydantic-core schema"),
        (reserved, "'model_config'"),
        (Shop.buy, "an unbound method can't be a tool; declare a bound one"),
        (functools.partial(plain, 1), "a tool needs a name|annotations can't be resolved"),
        (lambda a: a, None),
    ],
)
def test_each_signature_can_be_declared_or_says_why_not(function: Any, said: str | None) -> None:
    if said is None:
        assert Contract.of(function).name == "<lambda>"
        return
    with pytest.raises(ContractError, match=said):
        tool(function)


def test_bound_methods_are_tools() -> None:
    shop = Shop()
    for method, known in ((shop.buy, {"item", "count"}), (shop.open, {"at"}), (Shop.close, {"at"})):
        assert Contract.of(method).parameter_names == known


async def later(a: int) -> int:
    return a


def test_an_async_tool_declares_what_it_gives_in_the_end() -> None:
    assert Contract.of(later).returns is int


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": []}, "the `properties` of its JSON Schema are no object"),
        ({"properties": {}, "required": "a"}, "`required` of its JSON Schema is no list"),
        ({"properties": {TAG: {}}}, "no parameter can be called '\\$rollcage'"),
    ],
)
def test_a_json_schema_that_can_not_be_used_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Contract(name="remote", parameters=schema)


def test_a_model_that_names_what_is_not_there_is_refused() -> None:
    fields: dict[str, Any] = {"a": ("Nowhere", ...)}
    model = pydantic.create_model("Unfinished", **fields)
    with pytest.raises(ContractError, match="its parameters have no schema"):
        Contract(name="x", parameters=model)


def test_a_tool_needs_a_name() -> None:
    with pytest.raises(ContractError, match="needs a name"):
        Contract(name="", parameters={})


# --- arguments of functions ----------------------------------------------------------------------


def test_arguments_are_coerced_and_defaults_filled_in() -> None:
    contract = Contract.of(plain)
    assert bound(contract, a="3") == bound(contract, a=3, b="x") == b'{"a":3,"b":"x"}'
    assert contract.bind({"a": "3"}, str).values == {"a": 3, "b": "x"}

    def half(x: float) -> None: ...

    real = Contract.of(half)
    assert bound(real, x=3) == bound(real, x=3.0) == bound(real, x="3.0")
    assert bound(real, x=3) != bound(real, x=3.5)


def test_a_misspelt_argument_is_refused_and_not_dropped(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool
    def paint(colour: str = "white", coats: int = 1) -> None:
        ran.append(colour)

    said = "paint: unknown argument 'color'; it has coats, colour"
    with Session("job", store=tmp_path) as session:
        with pytest.raises(ArgumentsInvalid, match=said):
            session.call(paint, color="red")
        with pytest.raises(ArgumentsInvalid, match=said):
            cast("Any", paint)(color="red")
        paint(colour="red")
    assert ran == ["red"]
    assert session.stats.calls == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "plain: a: Field required"),
        ({"a": "many"}, "plain: a: Input should be a valid integer"),
        ({"a": 1, "b": []}, "plain: b: Input should be a valid string"),
        ({"a": None, "b": 1}, "plain: a: .*; b: "),
    ],
)
def test_wrong_arguments_say_what_is_wrong_and_not_their_value(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentsInvalid, match=said) as caught:
        bound(Contract.of(plain), **arguments)
    assert "many" not in str(caught.value)


def test_further_keywords_are_taken_where_the_function_takes_them() -> None:
    def log(level: str, **more: int) -> None: ...

    contract = Contract.of(log)
    got = contract.bind({"level": "info", "user": "3"}, str)
    assert got.values == {"level": "info", "user": 3}
    assert got.digest_input == b'{"level":"info","user":3}'
    with pytest.raises(ArgumentsInvalid, match="user: Input should be a valid integer"):
        bound(contract, level="info", user="ann")
    with pytest.raises(ArgumentsInvalid, match="can be called '\\$rollcage'"):
        bound(contract, level="info", **{TAG: 1})
    with pytest.raises(ArgumentsInvalid, match="should be a valid string"):
        bound(contract, level="info", **{"\ud800": 1})
    with pytest.raises(ArgumentsInvalid, match="JSON can't hold"):
        bound(Contract(name="remote", parameters={}), **{"\ud800": 1})


@pytest.mark.parametrize(
    "name", ["copy", "json", "schema", "dict", "model_dump", "model_fields", "validate", "self"]
)
def test_a_parameter_may_be_called_like_something_of_pydantic(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f(*, b: int = 1, {name}: int) -> None: ...", namespace)  # noqa: S102 - a name as data
    contract = Contract.of(namespace["f"])
    assert contract.parameter_names == {"b", name}
    assert contract.bind({name: "3"}, str).values == {name: 3, "b": 1}
    with pytest.raises(ArgumentsInvalid, match="unknown argument 'c'"):
        bound(contract, **{name: 3, "c": 1})


def test_a_default_is_each_calls_own() -> None:
    def collect(into: list[int] = [], seen: Any = {}) -> None: ...  # noqa: B006 - on purpose

    contract = Contract.of(collect)
    contract.bind({}, str).values["into"].append(1)
    assert bound(contract) == b'{"into":[],"seen":{}}'


def test_a_validator_that_breaks_is_told_without_its_words() -> None:
    def broken(value: str) -> str:
        raise KeyError(value)

    def check(x: Annotated[str, pydantic.AfterValidator(broken)]) -> None: ...

    contract = Contract.of(check)
    with pytest.raises(ArgumentsInvalid, match="its schema's own code raised KeyError") as caught:
        bound(contract, x="hunter2")
    assert "hunter2" not in str(caught.value)


# --- what a framework has validated --------------------------------------------------------------


class Doubling(pydantic.BaseModel):
    """Validating twice changes it."""

    number: int

    @pydantic.field_validator("number")
    @classmethod
    def double(cls, number: int) -> int:
        return 2 * number


class Stricter(Doubling):
    """What a user may declare in place of it."""

    number: int = pydantic.Field(lt=5)


def taken(parameters: type[pydantic.BaseModel], given: Validated) -> dict[str, Any]:
    found = Contract(name="t", parameters=parameters).bind(given, str)
    assert found.canonical == found.values
    return found.values


def test_what_a_framework_has_validated_is_taken_as_it_is() -> None:
    model = Doubling(number=2)
    values = taken(Doubling, Validated.of(model))
    assert values == {"number": 4}
    values["number"] = 0
    assert model.number == 4


def test_another_model_validates_it_all_the_same() -> None:
    assert taken(Stricter, Validated.of(Doubling(number=2))) == {"number": 8}
    with pytest.raises(ArgumentsInvalid, match="number: Input should be less than 5"):
        taken(Stricter, Validated.of(Doubling(number=3)))


def test_a_base_says_which_models_take_what_was_validated() -> None:
    assert taken(Stricter, Validated({"number": 7}, Doubling)) == {"number": 7}
    with pytest.raises(ArgumentsInvalid, match="less than 5"):
        Contract(name="t", parameters=Stricter).bind({"number": 7}, str)
    assert taken(Doubling, Validated({"number": 7}, Stricter)) == {"number": 14}


class Open(pydantic.BaseModel):
    """It takes more, and a field whose name Pydantic's own code has a use for."""

    model_config = pydantic.ConfigDict(extra="allow")
    cls: int = 1


def test_no_argument_is_lost_for_its_name() -> None:
    given = {"cls": 2, "_fields_set": ["a"], "self": 3, "values": 4}
    assert taken(Open, Validated(given, Open)) == given
    assert held_by(Open, given).model_dump() == given
    assert held_by(Open, given).model_fields_set >= {"cls"}
    assert held_by(Open, {"values": 4}).model_dump() == {"cls": 1, "values": 4}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fs:", "names nothing"),
        ("fs:read:", "names no path"),
        ("net:", "names nothing"),
        ("process:", "names nothing"),
        ("net:host:http", "'http' is not a port"),
        ("net:host:0", "'0' is not a port"),
        ("net:host:65536", "'65536' is not a port"),
        ("net::80", "names no host"),
        ("net:unix:", "names no path"),
    ],
)
def test_a_permission_that_can_not_be_read_is_refused(word: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        Contract(name="tool", parameters={}, permissions=(word,))
