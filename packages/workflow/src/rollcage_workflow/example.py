"""The example that `rollcage workflow init` writes."""

from typing import Final

__all__ = ["PLAN", "TOOLS"]

PLAN: Final = """\
name: orders
inputs:
  shop: {type: string, default: corner}
steps:
  orders:
    call: open_orders
    args: {shop: "=inputs.shop"}
  reserve:
    each:
      over: "=orders"
      max_concurrent: 1  # they change one file
      steps:
        stock:
          call: reserve
          args: {item: "=item.item", pieces: "=item.pieces"}
  approved:
    wait: {signal: approved, accepts: {type: boolean}}
    after: [reserve]
  ship:
    call: ship
    args: {count: "=size(reserve)"}
    when: "=approved"
output: {shipped: "=ship", reserved: "=reserve"}
on_failure: rollback
"""

TOOLS: Final = '''\
"""Tools of an example shop; its stock is the file stock.json."""

import json
from pathlib import Path
from typing import TypedDict

from rollcage import Compensation, compensate, tool

STOCK = Path("stock.json")


class Order(TypedDict):
    item: str
    pieces: int


def stock() -> dict[str, int]:
    return json.loads(STOCK.read_text()) if STOCK.exists() else {"apple": 10, "pear": 10}


@tool(effect="read")
def open_orders(shop: str) -> list[Order]:
    """The orders that wait."""
    return [{"item": "apple", "pieces": 3}, {"item": "pear", "pieces": 1}]


def state(args: dict[str, object]) -> dict[str, int]:
    item = str(args["item"])
    return {item: stock()[item]}


def give_back(args: dict[str, object]) -> list[Compensation]:
    return [compensate(reserve, item=args["item"], pieces=-int(str(args["pieces"])))]


@tool(effect="write", observe=state, undo=give_back)
def reserve(item: str, pieces: int) -> int:
    """Take pieces of an item out of stock; how many are left."""
    now = stock()
    now[item] -= pieces
    STOCK.write_text(json.dumps(now))
    return now[item]


def shipped(args: dict[str, object]) -> dict[str, bool]:
    return {"shipped": Path("shipped.txt").exists()}


def unship() -> list[Compensation]:
    return [compensate(recall)]


@tool(effect="write", idempotent=True)
def recall() -> None:
    """Call a shipment back."""
    Path("shipped.txt").unlink(missing_ok=True)


@tool(effect="write", observe=shipped, undo=unship)
def ship(count: int) -> str:
    """Ship what was reserved."""
    Path("shipped.txt").write_text(f"{count} orders")
    return f"{count} orders shipped"
'''
