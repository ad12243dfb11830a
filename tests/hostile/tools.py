"""Tools that do nothing but note that they ran."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from rollcage import tool

RAN: list[str] = []
"""The names of the tools whose bodies ran, in order."""


@tool(effect="read")
def read_file(path: str) -> str:
    RAN.append("read_file")
    return "text"


@tool(effect="write")
def write_file(path: str, content: str = "") -> None:
    RAN.append("write_file")


@tool(effect="write")
def copy_file(source: str, target: str) -> None:
    RAN.append("copy_file")


@tool(effect="read")
def read_files(paths: list[str]) -> list[str]:
    RAN.append("read_files")
    return []


@tool(effect="write")
def save(file: Path) -> None:
    RAN.append("save")


@tool(effect="read")
def fetch(url: str) -> str:
    RAN.append("fetch")
    return "page"


@tool(effect="read")
def fetch_all(urls: list[str]) -> list[str]:
    RAN.append("fetch_all")
    return []


@tool(effect="read")
def query(statement: str) -> list[Any]:
    RAN.append("query")
    return []


@tool(effect="write")
def shell(command: str) -> str:
    RAN.append("shell")
    return "done"


@tool(effect="write")
def send_mail(to: str | list[str], text: str = "") -> None:
    RAN.append("send_mail")


@tool(effect="write")
def pay(to: str, amount: float) -> None:
    RAN.append("pay")


@tool(effect="write")
def pay_exactly(to: str, amount: Decimal) -> None:
    RAN.append("pay_exactly")


@tool(effect="write")
def book(day: dt.date, seats: int = 1) -> None:
    RAN.append("book")


@tool(effect="write")
def put(value: Any) -> None:
    RAN.append("put")


@tool(effect="write", secret=["password"])
def log_in(user: str, password: str) -> None:
    RAN.append("log_in")


TOOLS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        read_file, write_file, copy_file, read_files, save, fetch, fetch_all, query, shell,
        send_mail, pay, pay_exactly, book, put, log_in,
    )
}  # fmt: skip
