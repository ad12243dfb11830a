"""OpenAPI documents of any origin: what is taken, and that hostile ones end in a clear error."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pets import PETS
from rollcage_mcp.errors import OpenAPIInvalid
from rollcage_mcp.openapi.document import load_document
from rollcage_mcp.openapi.operations import operations_of

Files = Callable[..., Path]


def load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "api.yaml"
    path.write_text(text)
    return operations_of(load_document(path))


LAUGHS = "a: &a [x, x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HEAD = 'openapi: "3.1.0"\n'
HOSTILE = {
    "billion laughs": (HEAD + LAUGHS, "anchors and aliases"),
    "an alias to itself": (HEAD + "paths: &a [*a]", "anchors and aliases"),
    "deep YAML": ("[" * 50_000, "levels deep|larger|can't be read"),
    "deep block": ("\n".join(" " * at + "a:" for at in range(300)), "levels deep"),
    "deep JSON": ("[" * 200 + "]" * 200, "levels deep"),
    "code": (HEAD + "x: !!python/object/apply:os.system ['id']", "could not determine"),
    "binary": (HEAD + "x: !!binary aGk=", "could not determine"),
    "a set": (HEAD + "x: !!set {a, b}", "could not determine"),
    "merge": (HEAD + "x: {<<: {a: 1}}", "could not determine"),
    "twice": (HEAD + "paths: {}\npaths: {}", "twice"),
    "no number": (HEAD + "x: .nan", "not a JSON number"),
    "huge number": (HEAD + f"x: {'9' * 5_000}", "can't be read"),
    "two documents": (HEAD + "---\nb: 1", "can't be read"),
    "no YAML": (HEAD + "x: [", "can't be read"),
    "no object": ("[1]", "not an OpenAPI 3.0 or 3.1 document"),
    "Swagger": ('{"swagger": "2.0"}', "not an OpenAPI 3.0 or 3.1 document"),
    "a version of tomorrow": ('{"openapi": "4.0.0"}', "not an OpenAPI 3.0 or 3.1 document"),
    "no paths": (HEAD, "has no paths"),
    "paths that are none": (HEAD + "paths: {pets: {}}", "has to begin with /"),
    "a path that is none": (HEAD + "paths: {/a: 3}", "not an object"),
}


@pytest.mark.parametrize(("text", "said"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_documents(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OpenAPIInvalid, match=said) as error:
        load(tmp_path, text)
    assert "api.yaml" in str(error.value)
    assert len(str(error.value)) < 1_000


def test_a_document_that_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(OpenAPIInvalid, match="larger than 4 MiB"):
        load(tmp_path, HEAD + "x: " + "a" * (5 << 20))
    with pytest.raises(OpenAPIInvalid, match="can't be read"):
        load_document(tmp_path / "missing.yaml")


def changed(**places: Any) -> Any:
    """The document with other values, at places that are named by words."""
    document = copy.deepcopy(PETS)
    for place, value in places.items():
        found = document
        *way, last = place.split("__")
        for name in way:
            found = found[name]
        found[last] = value
    return document


def with_pet(schema: Any) -> Any:
    return changed(components__schemas__Pet=schema)


BROKEN = {
    "a remote reference": (with_pet({"$ref": "https://evil.example.org/x"}), "is refused"),
    "a file": (with_pet({"$ref": "other.yaml#/Pet"}), "is refused"),
    "nowhere": (with_pet({"$ref": "#/components/nope"}), "leads to nothing"),
    "itself": (with_pet({"$ref": "#/components/schemas/Pet"}), "in a circle: Pet"),
    "by allOf": (with_pet({"allOf": [{"$ref": "#/components/schemas/Pet"}]}), "in a circle"),
    "a parameter's circle": (
        changed(components__parameters__Id={"$ref": "#/components/parameters/Id"}),
        "more than 20 other references",
    ),
    "no such parameter": (
        changed(paths={"/a/{b}": {"get": {"parameters": []}}}),
        r"names \['b'\], and its parameters are \[\]",
    ),
    "one name twice": (
        changed(paths={"/a": {"get": {"operationId": "x"}, "put": {"operationId": "x"}}}),
        "two operations are called x",
    ),
    "another server": (changed(paths={"/a": {"servers": [], "get": {}}}), "servers of its own"),
    "parameters of no list": (changed(paths={"/a": {"get": {"parameters": {}}}}), "is no list"),
    "a parameter of nowhere": (
        changed(paths={"/a": {"get": {"parameters": [{"name": "a", "in": "moon"}]}}}), "no place"
    ),
    "an unknown scheme": (
        changed(paths={"/a": {"get": {"security": [{"nope": []}]}}}), "no security scheme"
    ),
    "a header of two lines": (
        changed(paths={"/a": {"get": {"parameters": [{"name": "a\r\nb", "in": "header"}]}}}),
        "can't be the name of a header",
    ),
    "a key in the host": (
        changed(
            paths={"/a": {"get": {"security": [{"key": []}]}}},
            components__securitySchemes__key={"type": "apiKey", "in": "header", "name": "Host"},
        ),
        "can't be the name of a header",
    ),
    "large schemas": (with_pet({"allOf": [{} for _ in range(60_000)]}), "too many parts"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["api.json", "api.yaml"])
@pytest.mark.parametrize(("document", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_documents(document: Any, said: str, name: str, files: Files) -> None:
    path = files(document, name=name).with_name(name)
    with pytest.raises(OpenAPIInvalid, match=said):
        operations_of(load_document(path))


def test_dynamic_references_are_refused(files: Files) -> None:
    document = with_pet({"$dynamicRef": "#x"})
    with pytest.raises(OpenAPIInvalid, match="dynamicRef"):
        operations_of(load_document(files(document).with_name("pets.yaml")))


def test_schemas_of_30_become_json_schema(files: Files) -> None:
    found = operations_of(load_document(files().with_name("pets.yaml")))
    pet = found["putPet"].schema["$defs"]["Pet"]
    assert pet["properties"]["nick"] == {"type": ["string", "null"]}
    assert pet["properties"]["age"] == {"type": "integer", "exclusiveMinimum": 0}
    assert pet["properties"]["children"]["items"] == {"$ref": "#/$defs/Pet"}
    assert found["dropPet"].schema["required"] == ["path_id"]
    assert set(found["dropPet"].schema["properties"]) == {"path_id", "query_id", "X-Why"}


def test_31_keeps_what_stands_beside_a_reference(files: Files) -> None:
    document = with_pet(
        {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A", "title": "x"}}}
    )
    document["components"]["schemas"]["A"] = {"type": ["string", "null"]}
    document["openapi"] = "3.1.0"
    found = operations_of(load_document(files(document, name="a.json").with_name("a.json")))
    pet = found["putPet"].schema["$defs"]["Pet"]
    assert pet["properties"]["a"] == {"$ref": "#/$defs/A", "title": "x"}
    assert found["putPet"].schema["$defs"]["A"] == {"type": ["string", "null"]}


def test_yaml_keys_and_dates_are_texts(tmp_path: Path) -> None:
    text = HEAD + "info: {version: 2024-01-01}\npaths: {/a: {get: {responses: {200: {}, on: {}}}}}"
    (tmp_path / "a.yaml").write_text(text)
    document = load_document(tmp_path / "a.yaml").data
    assert document["info"]["version"] == "2024-01-01"
    assert set(document["paths"]["/a"]["get"]["responses"]) == {"200", "on"}
    assert set(load(tmp_path, text)) == {"get_a"}


def test_headers_that_frame_a_request_are_no_arguments(files: Files) -> None:
    names = ["Transfer-Encoding", "Connection", "Host", "Content-Length", "X-Own"]
    parameters = [{"name": each, "in": "header", "schema": {}} for each in names]
    document = changed(paths={"/a": {"get": {"parameters": parameters}}})
    found = operations_of(load_document(files(document).with_name("pets.yaml")))
    assert set(found["get_a"].schema["properties"]) == {"X-Own"}
