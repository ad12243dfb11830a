"""Where a run works: a folder, a database, a namespace of the service; and what is there, looked at
by means of the standard library alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rollcage import DidNotHappen, Happened
from rollcage_toolbox import Workspace
from rollcage_toolbox.http import Http, delete_location
from rollcage_toolbox.sql import Database

from tests.chaos import service
from tests.chaos.work import World

Tool = Callable[..., Any]

_TABLES: Final = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, price REAL);
CREATE TABLE people (name TEXT PRIMARY KEY, age INTEGER);
"""
_RECEIPTS: Final = "receipts"


class Place:
    """A folder, a database and a namespace of their own, filled as `World.first` says."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.namespace = uuid.uuid4().hex
        self.work = folder / "work"
        self.database = folder / "data.sqlite"
        self.store = folder / "store"
        self.ledger = folder / "ledger"
        self.said = folder / "said"

    def fill(self) -> None:
        """Make it."""
        world = World.first()
        self.work.mkdir(parents=True)
        for path, (mode, data) in sorted(world.files.items()):
            target = self.work / path
            if data is None:
                target.mkdir()
            else:
                target.write_bytes(data)
            target.chmod(mode)
        with sqlite3.connect(self.database) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.executescript(_TABLES)
            orders = [(key, *row) for key, row in world.orders.items()]
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
            connection.executemany("INSERT INTO people VALUES (?, ?)", world.people.items())
        connection.close()
        for item in world.items:
            service.post(self.port, self.namespace, item)

    def remove(self) -> None:
        """Take it away."""
        shutil.rmtree(self.folder)

    def digest(self) -> dict[str, Any]:
        """All names, modes and contents; all rows of all tables; all items."""
        files: dict[str, Any] = {}
        for above, dirs, names in os.walk(self.work):
            for name in (*dirs, *names):
                path = Path(above, name)
                mode = path.lstat().st_mode
                told: list[Any] = ["dir", stat.S_IMODE(mode)]
                if not stat.S_ISDIR(mode):
                    told = [
                        "file",
                        stat.S_IMODE(mode),
                        hashlib.sha256(path.read_bytes()).hexdigest(),
                    ]
                files[path.relative_to(self.work).as_posix()] = told
        items = service.asked(self.port, self.namespace)["items"]
        return {"files": files, "tables": self._rows(), "items": sorted(items.values())}

    def _rows(self) -> dict[str, list[Any]]:
        """By table, where it has any; a table of receipts may come and be empty again."""
        connection = sqlite3.connect(self.database)
        try:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = [name for (name,) in found.fetchall()]
            rows = {
                name: sorted(map(list, connection.execute(f'SELECT * FROM "{name}"')))  # noqa: S608 - our own tables
                for name in tables
            }
        finally:
            connection.close()
        return {name: there for name, there in rows.items() if there}

    # --- the tools -------------------------------------------------------------------------------

    def tools(self) -> dict[str, Tool]:
        """The tools that work here, those that only undo calls included, by name."""
        mail = Http(**self._http, name="mail")
        posts = Http(
            **self._http, observe={"POST": self._observe_posts}, probe={"POST": self._probe_post}
        )
        database = Database(f"sqlite:///{self.database}", receipts=_RECEIPTS)
        found: list[Iterable[Tool]] = [Workspace(self.work), database, posts, mail]
        return {name_of(each): each for some in found for each in some}

    def arguments(self, tool: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a planned call, with the address of this place."""
        if not tool.endswith("_post"):
            return dict(args)
        return {"url": f"http://127.0.0.1:{self.port}/{self.namespace}{service.ITEMS}", **args}

    @property
    def _http(self) -> dict[str, Any]:
        return {
            "allowed_hosts": [],
            "allow_private": [f"127.0.0.1:{self.port}"],
            "methods": ["POST"],
            "compensation": {"POST": delete_location},
        }

    def _observe_posts(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The items like the one that a call makes: others are not its business."""
        items = service.asked(self.port, self.namespace)["items"]
        like_it = sorted(at for at, body in items.items() if body == args["text"])
        return {f"item:{args['text']}": like_it}

    def _probe_post(self, args: Mapping[str, Any], key: str) -> Happened | DidNotHappen:
        kept = service.asked(self.port, self.namespace)
        made = [at for at in kept["made"].get(key, []) if at in kept["items"]]
        if not made:
            return DidNotHappen()
        location = f"http://127.0.0.1:{self.port}{made[-1]}"
        headers = {"location": location}
        return Happened({"status": 201, "url": args["url"], "headers": headers, "text": ""})


def name_of(tool: Any) -> str:
    """The name under which a tool is declared."""
    name: str = tool.__rollcage_contract__.name
    return name
