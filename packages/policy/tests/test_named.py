"""What the user named: whole words of the user's own, and nothing that looks like them."""

from typing import Any

import pytest
from rollcage_policy.named import Named

SAID = (
    "Please mail the figures to Ann@Example.com, and cc bob.smith@corp.example.\n"
    "Order 4711 is for Zo\u00eb  Smith (see https://shop.example:8443/orders/7?x=1). Not joe@x.com!"
)


@pytest.mark.parametrize(
    "value",
    [
        "ann@example.com", " Ann@Example.com ", "bob.smith@corp.example", "joe@x.com", 4711, "4711",
        4711.0, "Zoe\u0308 Smith", "zo\u00eb smith", "https://shop.example:8443/orders/7?x=1",
        "shop.example", "figures", ["ann@example.com", "joe@x.com"], ("joe@x.com",),
    ],
)  # fmt: skip
def test_the_user_named_it(value: Any) -> None:
    assert Named(SAID)(value) is True


@pytest.mark.parametrize(
    "value",
    [
        "nn@example.com", "ann@example.co", "example.com", "ann", "smith@corp.example",
        "bob.smith@corp", "corp.example", "oe@x.com", "x.com", 471, 711, 4711.5, "hop.example",
        "orders", "eve@evil.example", "", " ", ".", "@", "ann@example.com, eve@evil.example",
        "ann@example.com\r\nBcc: eve@evil.example", "ann@example.com\n", "ann\u200b@example.com",
        "\uff41nn@example.com", [], ["ann@example.com", "eve@evil.example"], "Zoe Smith",
        "zo\u00eb\u00a0\u202esmith", "shop.example.evil.example",
    ],
)  # fmt: skip
def test_the_user_did_not_name_it(value: Any) -> None:
    assert Named(SAID)(value) is False


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("joann@x.com", "ann@x.com"),
        ("ann@x.com.evil.example", "ann@x.com"),
        ("ann@x.com-evil.example", "ann@x.com"),
        ("ann+list@x.com", "list@x.com"),
        ("jo.ann@x.com", "ann@x.com"),
        ("jo-ann@x.com", "ann@x.com"),
        ("o'ann@x.com", "ann@x.com"),
        ("@ann", "ann"),
        ("https://x.com@evil.example/", "x.com"),
        ("https://evil.example/x.com", "x.com"),
        ("stra\u00dfe@x.com", "strasse@x.com"),
        ("x.com:8080", "x.com"),
    ],
)
def test_a_part_of_another_word_is_not_named(said: str, value: str) -> None:
    assert Named(said)(value) is False


@pytest.mark.parametrize(
    "said",
    [
        "ann@x.com", "to ann@x.com.", "<ann@x.com>", "(ann@x.com)", '"ann@x.com"', "'ann@x.com'",
        "cc:ann@x.com;", "ann@x.com, bob@y.org", "`ann@x.com`", "**ann@x.com**", "ann@x.com?",
        "joann@x.com or rather ann@x.com", "[mail](ann@x.com)", "is it ann@x.com...",
    ],
)  # fmt: skip
def test_punctuation_around_it_is_no_part_of_it(said: str) -> None:
    assert Named(["something else", said])("ann@x.com") is True


def test_without_user_input_nothing_is_named() -> None:
    assert Named([])("ann@x.com") is False
    assert Named("")("ann@x.com") is False


@pytest.mark.parametrize(
    "value", [None, True, {"to": "ann"}, float("nan"), b"ann", [None], "x" * 1_000_001]
)
def test_what_nobody_would_write_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="named takes"):
        Named("x")(value)
