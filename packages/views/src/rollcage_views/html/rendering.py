"""Templates, and the shared parts of all pages: a style, a small script, a browser policy."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from hashlib import sha256
from importlib import resources
from typing import Any, Final, TextIO

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rollcage_views.html.links import Links
from rollcage_views.html.tones import tone
from rollcage_views.text import counted, duration_text, utc_text, visible

__all__ = ["environment", "loader", "script", "set_up", "stylesheet", "write_report"]

_WIDTH: Final = 1000  # units of a bar's track
_LEAST: Final = 4  # units of the shortest bar


def loader() -> BaseLoader:
    """Return the loader: `parts.html` has the macros, each `*_body.html` the content of a page."""
    return PackageLoader("rollcage_views.html")


def environment(templates: BaseLoader | None = None) -> Environment:
    """Return an environment that escapes all values.

    Args:
        templates: other templates: for example a server's `ChoiceLoader` over its own and
            `loader()`.
    """
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=templates or loader(),
    )
    set_up(made)
    return made


def set_up(templates: Environment) -> None:
    """Give an environment the functions of these templates."""
    filters: dict[str, Callable[..., Any]] = {
        "counted": counted, "duration": duration_text, "instant": utc_text, "tone": tone,
        "visible": visible, "words": lambda word: str(word).replace("_", " "),
    }  # fmt: skip
    templates.filters.update(filters)
    templates.globals["bar_place"] = _bar_place


def _bar_place(start: float, length: float) -> tuple[int, int]:
    """Return the place of a bar on its track, and its width: visible, however short."""
    left = round(min(max(start, 0.0), 1.0) * (_WIDTH - _LEAST))
    return left, max(_LEAST, min(round(length * _WIDTH), _WIDTH - left))


def stylesheet() -> str:
    """Return the style of all pages."""
    return _file("style.css")


def script() -> str:
    """Return the script that filters lists while the user types; pages work without it."""
    return _file("page.js")


@functools.cache
def _file(name: str) -> str:
    folder = resources.files("rollcage_views.html").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _reports(package: str | None) -> Environment:
    return environment(ChoiceLoader([PackageLoader(package), loader()]) if package else None)


def write_report(
    template: str,
    out: TextIO,
    *,
    package: str | None = None,
    links: Links | None = None,
    **values: Any,
) -> None:
    """Write a self-contained page, piece by piece.

    Args:
        template: its name; it extends `report.html`.
        out: the output.
        package: the package with the template in its folder `templates`, if another one.
        links: the addresses of its links.
        values: its values; all of them are escaped.
    """
    style, code = stylesheet(), script()
    shown = {
        "style": Markup(style),  # noqa: S704 - our own file
        "script": Markup(code),  # noqa: S704 - our own file
        "policy": (
            f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(code)}; "
            f"base-uri 'none'; form-action 'none'"
        ),
        "links": links or Links(),
        **values,
    }
    out.writelines(_reports(package).get_template(template).generate(shown))


def _digest(text: str) -> str:
    """Return the digest of a text for a content security policy, which allows only that text."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
