"""What a run does, and what comes of it: by a model that knows nothing of the project.

A plan is drawn at random, each call in a world in which it succeeds.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import random
from collections.abc import Callable
from typing import Any, Final, Literal

FILES: Final = (
    "create", "overwrite", "append", "edit", "move", "copy", "delete", "mkdir", "rmdir",
)  # fmt: skip
ROWS: Final = ("insert", "insert_unnamed", "update", "remove")
POSTS: Final = ("post", "mail")
"""`post` can be observed and probed, `mail` can't."""

FILE_MODE: Final = 0o644
DIR_MODE: Final = 0o755


@dataclasses.dataclass(frozen=True)
class Op:
    """One call of a tool."""

    tool: str
    args: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """Something to do: a call, a turn of calls that are made together, or a transaction."""

    kind: Literal["call", "turn", "block"]
    ops: tuple[Op, ...] = ()
    parts: tuple[Part, ...] = ()
    fails: bool = False  # a block at whose end the agent changes its mind


@dataclasses.dataclass
class World:
    """Files by path (their mode, and content unless it is a directory), rows by key, items."""

    files: dict[str, tuple[int, bytes | None]]
    orders: dict[int, tuple[str, float | None]]
    people: dict[str, int]
    items: list[str]

    @classmethod
    def first(cls) -> World:
        """What each run finds."""
        return cls(
            files={
                "d": (0o750, None),
                "d/e": (DIR_MODE, None),
                "empty": (0o700, None),
                "a.txt": (FILE_MODE, b"one two three\r\n"),
                "d/b.txt": (0o640, "grüße\n".encode()),
                "d/e/big.bin": (0o600, bytes(range(256)) * 300),
                "none.txt": (0o400, b""),
            },
            orders={n: (f"thing {n}", None if n == 3 else n / 4) for n in range(1, 6)},
            people={"Ann": 31, "Bob": 47, "Zoë": 5},
            items=["there before"],
        )

    def digest(self) -> dict[str, Any]:
        """The same form in which a place tells what is there."""
        files = {
            path: ["dir", mode]
            if data is None
            else ["file", mode, hashlib.sha256(data).hexdigest()]
            for path, (mode, data) in self.files.items()
        }
        tables = {
            "orders": [[key, *row] for key, row in sorted(self.orders.items())],
            "people": [[name, age] for name, age in sorted(self.people.items())],
        }
        return {
            "files": files,
            "tables": {name: rows for name, rows in tables.items() if rows},
            "items": sorted(self.items),
        }

    def plain(self) -> list[str]:
        """The paths of files."""
        return sorted(path for path, (_, data) in self.files.items() if data is not None)

    def dirs(self) -> list[str]:
        """The paths of directories; the folder itself is the empty one."""
        return ["", *sorted(path for path, (_, data) in self.files.items() if data is None)]


class Planner:
    """Draws plans.

    Args:
        seed: the same seed, the same plan.
        mail: whether calls are among them of which nobody can tell later whether they happened.
    """

    def __init__(self, seed: str, *, mail: bool) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same plan again, in each process
        self.world = World.first()
        self._drawn = 0
        self._posts = POSTS if mail else POSTS[:1]

    def plan(self) -> tuple[Part, ...]:
        """Some eight to fourteen calls."""
        parts: list[Part] = []
        wanted = self._drawn + self.chance.randint(8, 14)
        while self._drawn < wanted:
            if self._drawn + 3 <= wanted and self.chance.random() < 0.12:
                parts.append(self._block())
            else:
                parts.append(self._part())
        return tuple(parts)

    def _part(self) -> Part:
        if self.chance.random() < 0.2:  # of each kind one: they touch nothing in common
            kinds = self.chance.sample([FILES, ROWS, self._posts], k=self.chance.choice([2, 3]))
            return Part("turn", tuple(self._op(kind) for kind in kinds))
        kind = self.chance.choices([FILES, ROWS, self._posts], [10, 6, 3])[0]
        return Part("call", (self._op(kind),))

    def _block(self) -> Part:
        fails = self.chance.random() < 0.5
        before = copy.deepcopy(self.world)
        parts = tuple(self._part() for _ in range(self.chance.choice([1, 2, 3])))
        if fails:
            self.world = before
        return Part("block", parts=parts, fails=fails)

    def _op(self, kinds: tuple[str, ...]) -> Op:
        while True:
            draw: Callable[[], Op | None] = getattr(self, f"_{self.chance.choice(kinds)}")
            op = draw()
            if op is not None:
                self._drawn += 1
                return op

    # --- files -----------------------------------------------------------------------------------

    def _text(self) -> str:
        """A text that no other call writes."""
        return f"{self.chance.random()} ü\n" * self.chance.choice([1, 1, 1, 40, 4_000])

    def _fresh(self) -> str:
        folder = self.chance.choice(self.world.dirs())
        name = f"{self.chance.choice('xyz')}{self.chance.randrange(10**6)}"
        return f"{folder}/{name}" if folder else name

    def _some_file(self) -> str | None:
        files = self.world.plain()
        return self.chance.choice(files) if files else None

    def _create(self) -> Op:
        path, text = self._fresh(), self._text()
        self.world.files[path] = (FILE_MODE, text.encode())
        return Op("write_file", {"path": path, "content": text, "overwrite": False})

    def _overwrite(self) -> Op | None:
        path = self._some_file()
        if path is None:
            return None
        text = self._text()
        self.world.files[path] = (self.world.files[path][0], text.encode())
        return Op("write_file", {"path": path, "content": text})

    def _append(self) -> Op | None:
        path = self._some_file()
        if path is None:
            return None
        mode, data = self.world.files[path]
        text = self._text()
        self.world.files[path] = (mode, (data or b"") + text.encode())
        return Op("append_file", {"path": path, "content": text})

    def _edit(self) -> Op | None:
        path = self._some_file()
        if path is None:
            return None
        mode, data = self.world.files[path]
        try:
            text = (data or b"").decode()
        except UnicodeDecodeError:
            return None
        if not text:
            return None
        start = self.chance.randrange(len(text))
        old = text[start : start + 200]
        if text.count(old) != 1 or text.find(old, text.find(old) + 1) >= 0:
            return None
        new = self._text()
        self.world.files[path] = (mode, text.replace(old, new).encode())
        return Op("edit_file", {"path": path, "old": old, "new": new})

    def _move(self) -> Op | None:
        source = self._some_file()
        if source is None:
            return None
        target, overwrite = self._fresh(), False
        if self.chance.random() < 0.3:
            target, overwrite = self._some_file() or target, True
        if target == source:
            return None
        self.world.files[target] = self.world.files.pop(source)
        return Op("move_file", {"source": source, "target": target, "overwrite": overwrite})

    def _copy(self) -> Op | None:
        source = self._some_file()
        if source is None:
            return None
        target, overwrite = self._fresh(), False
        if self.chance.random() < 0.3:
            target, overwrite = self._some_file() or target, True
        if self.world.files.get(target) == self.world.files[source] or target == source:
            return None
        self.world.files[target] = self.world.files[source]
        return Op("copy_file", {"source": source, "target": target, "overwrite": overwrite})

    def _delete(self) -> Op | None:
        path = self._some_file()
        if path is None:
            return None
        del self.world.files[path]
        return Op("delete_file", {"path": path})

    def _mkdir(self) -> Op:
        path = self._fresh()
        self.world.files[path] = (DIR_MODE, None)
        if self.chance.random() < 0.5:
            return Op("make_dir", {"path": path})
        below = f"{path}/in/side"
        self.world.files |= {f"{path}/in": (DIR_MODE, None), below: (DIR_MODE, None)}
        return Op("make_dir", {"path": below, "parents": True})

    def _rmdir(self) -> Op | None:
        files = self.world.files
        empty = [d for d in self.world.dirs()[1:] if not any(p.startswith(f"{d}/") for p in files)]
        if not empty:
            return None
        path = self.chance.choice(empty)
        del files[path]
        return Op("delete_dir", {"path": path})

    # --- rows and items --------------------------------------------------------------------------

    def _insert(self) -> Op:
        item = f"item {self.chance.random()}"
        if self.chance.random() < 0.5:
            name, age = f"N{self.chance.randrange(10**6)}", self.chance.randrange(10**6)
            self.world.people[name] = age
            return Op("sql_insert", {"table": "people", "rows": [{"name": name, "age": age}]})
        free = [key for key in range(1, 10**6) if key not in self.world.orders]
        keys = self.chance.sample(free[:50], 2)
        rows = [{"id": key, "item": item, "price": key * 0.5} for key in keys]
        self.world.orders |= {key: (item, key * 0.5) for key in keys}
        return Op("sql_insert", {"table": "orders", "rows": rows})

    def _insert_unnamed(self) -> Op:
        item = f"item {self.chance.random()}"
        self.world.orders[max(self.world.orders, default=0) + 1] = (item, None)
        return Op("sql_insert", {"table": "orders", "rows": [{"item": item}]})

    def _some_orders(self) -> list[int]:
        there = sorted(self.world.orders)
        return self.chance.sample(there, min(len(there), self.chance.choice([1, 1, 2])))

    def _update(self) -> Op | None:
        keys = self._some_orders()
        if not keys:
            return None
        item = f"changed {self.chance.random()}"
        for key in keys:
            self.world.orders[key] = (item, self.world.orders[key][1])
        where = [{"id": key} for key in keys]
        return Op("sql_update", {"table": "orders", "where": where, "values": {"item": item}})

    def _remove(self) -> Op | None:
        keys = self._some_orders()
        if not keys:
            return None
        for key in keys:
            del self.world.orders[key]
        return Op("sql_delete", {"table": "orders", "where": [{"id": key} for key in keys]})

    def _post(self) -> Op:
        body = f"post {self.chance.random()}"
        self.world.items.append(body)
        return Op("http_post", {"text": body})

    def _mail(self) -> Op:
        body = f"mail {self.chance.random()}"
        self.world.items.append(body)
        return Op("mail_post", {"text": body})
