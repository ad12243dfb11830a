"""What a browser would make of a page: its elements, attributes and text."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from html.parser import HTMLParser

__all__ = ["HOSTILE", "Markup"]

HOSTILE = (
    "<script>alert(1)</script>",
    "</style></script><img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)> ' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }} {% include 'x' %}",
    "&lt;b&gt; &amp;",
    "<!-- --> ]]> <![CDATA[",
    "\x1b]0;owned\x07\x1b[31m \u202eabc\u2028 \u200b",
    "back`tick ${7*7} \\u003cscript",
)
"""Texts that would act on a page, or on a terminal."""

_VOID = {"meta", "input", "br", "rect", "link", "img", "hr"}
_FETCHES = {"src", "srcset", "href", "action", "formaction", "data", "poster", "xlink:href"}


class Markup(HTMLParser):
    """A page, read.

    Attributes:
        elements: each element: its name, and its attributes.
        text: what is not markup, without style and script.
        style: what is in the style element.
        script: what is in the script element.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = self.style = self.script = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "style":
            self.style += data
        elif inside == "script":
            self.script += data
        else:
            self.text += data

    @property
    def tags(self) -> set[str]:
        """The names of the elements."""
        return {tag for tag, _ in self.elements}

    @property
    def attributes(self) -> set[str]:
        """The names of the attributes."""
        return {name for _, given in self.elements for name in given}

    @property
    def addresses(self) -> set[str]:
        """Where its attributes lead."""
        return {
            value or ""
            for _, given in self.elements
            for name, value in given.items()
            if name in _FETCHES
        }

    @property
    def classes(self) -> set[str]:
        """The classes of the elements."""
        return {word for _, given in self.elements for word in (given.get("class") or "").split()}

    def check_alone(self) -> None:
        """It fetches nothing, and a browser runs nothing but its own script."""
        assert all(address.startswith("#") for address in self.addresses), self.addresses
        assert not {"style", "srcdoc"} & self.attributes
        assert not any(name.startswith("on") for name in self.attributes)
        allowed = {"http-equiv": "Content-Security-Policy"}.items()
        policies = [given["content"] or "" for tag, given in self.elements
                    if tag == "meta" and allowed <= given.items()]  # fmt: skip
        (policy,) = policies
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for text in (self.style, self.script):
            digest = base64.b64encode(sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
        assert not re.search(r"url\(|@import|://", self.style)
        assert not re.search(r"://|fetch|import|eval|innerHTML|Storage|cookie", self.script)
