"""Values of the classes that a tool's annotations name come back as themselves."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from rollcage import Session, tool
from rollcage.trace.folder import Folder

ran: list[str] = []


class Item(BaseModel):
    name: str


class Order(BaseModel):
    items: list[Item]


@dataclasses.dataclass(frozen=True)
class Receipt:
    number: int
    items: tuple[Item, ...]


class Spoilt(Exception):
    def __init__(self, item: Item) -> None:
        super().__init__(item)
        self.item = item


@tool(name="values.order", effect="write")
def order(name: str) -> Order:
    ran.append(name)
    return Order(items=[Item(name=name)])


@tool(name="values.pay", effect="read")
def pay(name: str) -> list[Receipt]:
    ran.append(name)
    return [Receipt(1, (Item(name=name),))]


@tool(name="values.eat", effect="write", raises=Spoilt)
def eat(name: str) -> Order:
    ran.append(name)
    raise Spoilt(Item(name=name))


def work() -> list[Any]:
    with pytest.raises(Spoilt) as spoilt:
        eat("fish")
    return [order("é"), pay("é"), spoilt.value.item]


EXPECTED = [Order(items=[Item(name="é")]), [Receipt(1, (Item(name="é"),))], Item(name="fish")]


@pytest.mark.parametrize("replay", ["resume", "offline"])
def test_results_of_annotated_classes_come_back(tmp_path: Path, replay: Any) -> None:
    ran.clear()
    with Session("job", store=tmp_path) as session:
        assert work() == EXPECTED
    assert len(ran) == 3
    with Session("job", store=tmp_path, replay=replay) as again:
        assert work() == EXPECTED
    assert (len(ran), again.stats.hits) == (3, 3)
    assert b'"lossy"' not in b"".join(Folder(tmp_path).read(session.run_id))


def test_they_come_back_in_async_sessions(tmp_path: Path) -> None:
    async def job(replay: Any) -> list[Any]:
        async with Session("job", store=tmp_path, replay=replay) as session:
            return [await session.acall(order, name="é"), await session.acall(pay, name="é")]

    ran.clear()
    assert asyncio.run(job("auto")) == asyncio.run(job("offline")) == EXPECTED[:2]
    assert len(ran) == 2
