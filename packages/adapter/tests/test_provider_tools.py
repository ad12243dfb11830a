"""Tools that a model's provider runs itself: a facade has to give them."""

from pathlib import Path
from typing import Any

import orjson
import pydantic
import pytest
from rollcage import Contract, Session, list_runs
from rollcage.errors import ToolRefused
from rollcage_adapter import expose_provider_tools, expose_settings, provider_tool_contract
from rollcage_governance import Facade, Registry

SEARCH: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": "look"}},
    {"type": "function", "name": "look", "parameters": {}},
    {"type": "custom", "name": "look", "input_schema": {}},
    {"name": "look", "input_schema": {}},
    {"function": {"name": "look"}},
    {"toolSpec": {"name": "look"}},
    {"function_declarations": [{"name": "look"}]},
    {"cachePoint": {"type": "default"}},
    dict,
    Contract(name="look", parameters={"properties": {}}, effect="read"),
]
OF_PROVIDERS: list[Any] = [
    SEARCH,
    {"type": "web_search_preview"},
    {"type": "mcp", "server_url": "https://mcp.example"},
    {"google_search": {}},
    {"function_declarations": [{"name": "look"}], "code_execution": {}},
    {"systemTool": {"name": "nova_grounding"}},
    {"type": ["function"]},
    {},
    object(),
]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    found = Registry(tmp_path)
    approve(found, Contract(name="look", parameters={"properties": {}}, effect="read"))
    found.define_facade("agent", ["pack"], by="bob")
    return found


def approve(registry: Registry, contract: Contract) -> None:
    registry.propose(contract, by="ann")
    registry.approve(contract.name, by="bob")
    registry.activate(contract.name, "pack", by="bob")


@pytest.mark.parametrize("tool", OF_PROVIDERS)
def test_a_facade_gives_none_that_nobody_approved(
    tmp_path: Path, registry: Registry, tool: Any
) -> None:
    with Session("job", store=tmp_path, gate=[Facade("agent")]) as session:
        expose_provider_tools(session, FUNCTIONS)
        for tools in ([*FUNCTIONS, tool], (tool,)):
            with pytest.raises(ToolRefused, match="is not approved"):
                expose_provider_tools(session, tools)
    (info,) = list_runs(session.store)
    lines = map(orjson.loads, session.store.read(info.run))
    refused = [line for line in lines if line["event"] == "refused"]
    assert refused
    for line in refused:
        assert line["name"].startswith("provider:")
        assert line["verdict"]["code"] == "tool_unapproved"


def test_one_that_is_no_list_is_a_tool(tmp_path: Path, registry: Registry) -> None:
    with Session("job", store=tmp_path, gate=[Facade("agent")]) as session:
        with pytest.raises(ToolRefused):
            expose_provider_tools(session, {"google_search": {}})
        nothing: list[Any] = [None, [], (), {}]
        for each in nothing:
            expose_provider_tools(session, each)


def test_one_that_was_approved_is_given_as_it_was_approved(
    tmp_path: Path, registry: Registry
) -> None:
    approve(registry, provider_tool_contract(SEARCH))
    with Session("job", store=tmp_path, gate=[Facade("agent")]) as session:
        expose_provider_tools(session, [SEARCH])
        with pytest.raises(ToolRefused, match="other schema"):
            expose_provider_tools(session, [{**SEARCH, "max_uses": 1000}])


def test_without_a_facade_all_are_given(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        expose_provider_tools(session, OF_PROVIDERS)
        expose_provider_tools(session, None)


# --- in a model's settings -----------------------------------------------------------------------


class Model(pydantic.BaseModel):
    """A model of a framework."""

    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)
    model_kwargs: dict[str, Any] = {}
    inner: Any = None
    _hidden: Any = pydantic.PrivateAttr(None)


class Plain:
    """A model of a framework that has no fields."""

    def __init__(self, **settings: Any) -> None:
        self._create_args = settings
        self.itself = self

    def create(self) -> None:
        """Make a model of it, as `models=` names the method."""


def extra(**more: Any) -> Model:
    return Model.model_validate(more)


def hidden(value: Any) -> Model:
    found = Model()
    found._hidden = value
    return found


OFFERING: list[Any] = [
    {"tools": [*FUNCTIONS, SEARCH]},
    {"builtin_tools": ["web_search"]},
    {"extra_create_args": {"tools": [SEARCH]}},
    {"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}},
    {"web_search_options": {"search_context_size": "low"}},
    {"enable_search": True},
    {"prompt": {"id": "pmpt_1"}},
    Model(model_kwargs={"tools": [SEARCH]}),
    Model(model_kwargs={"extra_body": [{"Tools": SEARCH}]}),
    extra(tools=[SEARCH]),
    extra(mcp_servers=[{"type": "url", "url": "https://mcp.example"}]),
    Model(inner=Model(model_kwargs={"tools": [SEARCH]})),
    Model(inner=[Plain(tools=[SEARCH])]),
    hidden(Model(model_kwargs={"tools": [SEARCH]})),
    Plain(tools=[SEARCH]),
]
OFFERING_NONE: list[Any] = [
    None,
    {},
    {"tools": FUNCTIONS, "tool_choice": "auto", "enable_search": False, "mcp_servers": []},
    {"tools": [{"name": "look", "input_schema": {"properties": {"tools": {"type": "array"}}}}]},
    {"response_format": {"json_schema": {"schema": {"properties": {"tools": {"type": "a"}}}}}},
    {"metadata": {"tools": "many"}, "prompt": "Go."},
    Model(inner=object(), model_kwargs={"temperature": 0.5}),
    Plain(tools=FUNCTIONS),
]


@pytest.mark.parametrize("settings", OFFERING)
def test_settings_of_a_model_offer_none_that_nobody_approved(
    tmp_path: Path, registry: Registry, settings: Any
) -> None:
    refused = pytest.raises(ToolRefused, match=r"provider:\w+ is not approved")
    with Session("job", store=tmp_path, gate=[Facade("agent")]) as session, refused:
        expose_settings(session, {}, settings, models=("create",))
    with Session("free", store=tmp_path) as session:
        expose_settings(session, settings, models=("create",))


@pytest.mark.parametrize("settings", OFFERING_NONE)
def test_other_settings_are_left_alone(tmp_path: Path, registry: Registry, settings: Any) -> None:
    with Session("job", store=tmp_path, gate=[Facade("agent")]) as session:
        expose_settings(session, settings, models=("create",))


def test_a_setting_that_was_approved_is_given_as_it_was_approved(
    tmp_path: Path, registry: Registry
) -> None:
    options = {"search_context_size": "low"}
    approve(
        registry,
        provider_tool_contract({"type": "web_search_options", "web_search_options": options}),
    )
    approve(registry, provider_tool_contract({"type": "web_search_preview"}))
    with Session("job", store=tmp_path, gate=[Facade("agent")]) as session:
        expose_settings(session, extra(web_search_options=options))
        expose_settings(session, extra(builtin_tools=["web_search_preview"]))
        with pytest.raises(ToolRefused, match="other schema"):
            expose_settings(
                session, extra(web_search_options={}, model_kwargs={"web_search_options": {"a": 1}})
            )
