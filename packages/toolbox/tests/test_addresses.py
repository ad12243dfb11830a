"""Which URLs and addresses may be reached: one spelling of each, and nothing off the internet."""

import importlib.util
import sys
from ipaddress import ip_address
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage_toolbox.addresses import AddressRefused, Reachable, system_resolver, why_not_public


@pytest.fixture(scope="module")
def corpus() -> ModuleType:
    path = Path(__file__).with_name("hostile_urls.py")
    spec = importlib.util.spec_from_file_location("hostile_urls", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hostile_urls"] = module
    spec.loader.exec_module(module)
    return module


def test_no_hostile_url_gets_through(corpus: ModuleType) -> None:
    outcomes = corpus.run(corpus.hostile())
    assert len({(each.case.url, str(each.case.answers)) for each in outcomes}) >= 200
    assert [each for each in outcomes if each.outcome != "refused"] == []


def test_their_benign_twins_all_do(corpus: ModuleType) -> None:
    outcomes = corpus.run(corpus.benign())
    assert len(outcomes) >= 200
    assert [each for each in outcomes if each.outcome != "answered"] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("HTTP://API.Example", "http://api.example/"),
        ("http://api.example:80/a?b#c", "http://api.example/a?b"),
        ("https://api.example:443", "https://api.example/"),
        ("https://api.example:80/", "https://api.example:80/"),
        ("http://api.example./", "http://api.example/"),
        ("http://bücher.example/ä", "http://xn--bcher-kva.example/ä"),
        ("http://[2001:4860:4860:0:0::8888]:443/", "http://[2001:4860:4860::8888]:443/"),
        ("http://api.example?q", "http://api.example/?q"),
    ],
)
def test_a_url_has_one_spelling(written: str, meant: str) -> None:
    assert Reachable(hosts=["*"]).check(written).url == meant


def test_private_places_are_exact() -> None:
    reachable = Reachable(hosts=[], private=["127.0.0.1:8080", "[::1]:8080", "db.internal:5000"])
    for url in ("http://127.0.0.1:8080/", "http://[::1]:8080/", "http://DB.internal:5000/"):
        target = reachable.check(url)
        assert reachable.is_private(target)
        assert reachable.addresses(target.host, target.port, lambda host, port: ["10.0.0.1"])
    for url in ("http://127.0.0.1:8081/", "http://127.0.0.2:8080/", "http://db.internal/",
                "http://localhost:8080/", "http://api.example:8080/"):  # fmt: skip
        with pytest.raises(AddressRefused):
            reachable.check(url)


def test_more_answers_than_anyone_needs_are_refused() -> None:
    answers = [f"93.184.{number}.1" for number in range(33)]
    with pytest.raises(AddressRefused, match="33 addresses"):
        Reachable(hosts=["*"]).addresses("api.example", 80, lambda host, port: answers)


def test_the_systems_resolver_gives_addresses() -> None:
    assert "127.0.0.1" in system_resolver("127.0.0.1", 80)


@given(st.ip_addresses())
def test_what_is_public_is_global(address: object) -> None:
    """The standard library's own table is a second opinion of what is let through."""
    told = ip_address(str(address))
    if why_not_public(str(told)) is None:
        inner = getattr(told, "ipv4_mapped", None)
        assert told.is_global or inner or str(told).startswith("64:ff9b::")


@given(st.text(max_size=60))
def test_any_text_is_checked_or_refused(text: str) -> None:
    reachable = Reachable(hosts=["*"])
    for url in (text, f"http://{text}", f"http://{text}/", f"http://api.example{text}"):
        try:
            target = reachable.check(url)
        except AddressRefused:
            continue
        assert reachable.check(target.url) == target
