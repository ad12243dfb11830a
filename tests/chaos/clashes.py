"""What somebody else does between our write and our undo, as a table."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.chaos import service
from tests.chaos.place import Place
from tests.chaos.work import Op

NOTES: Final = "notes_post"

Theirs = Callable[[Place], None]


class Case(NamedTuple):
    """A write of ours, and what somebody else does behind it.

    Attributes:
        write: what kind of write it is.
        theirs: what they do.
        op: the write.
        interfere: does it.
        resource: what the undo must say differs; empty where nothing of ours was changed, and all
            must be undone.
        fields: what it must say of how.
        first: writes that ours needs.
        status: how the undo refuses: a status of a step, or an error's name. With `failed`, what
            came behind would be undone first: the write is the last one.
    """

    write: str
    theirs: str
    op: Op
    interfere: Theirs
    resource: str = ""
    fields: tuple[str, ...] = ()
    first: tuple[Op, ...] = ()
    status: str = "conflict"


# --- what they do to files -----------------------------------------------------------------------


def _rewritten(path: str) -> Theirs:
    return lambda place: _write(place, path, "w")


def _extended(path: str) -> Theirs:
    return lambda place: _write(place, path, "a")


def _write(place: Place, path: str, how: str) -> None:
    with (place.work / path).open(how) as file:
        file.write("theirs")


def _chmod(path: str, mode: int) -> Theirs:
    return lambda place: (place.work / path).chmod(mode)


def _removed(path: str) -> Theirs:
    return lambda place: (place.work / path).unlink()


def _renamed(path: str) -> Theirs:
    def interfere(place: Place) -> None:
        (place.work / path).rename(place.work / "theirs.txt")

    return interfere


def _dir_instead(path: str) -> Theirs:
    def interfere(place: Place) -> None:
        (place.work / path).unlink(missing_ok=True)
        (place.work / path).mkdir()

    return interfere


def _file_instead(path: str) -> Theirs:
    def interfere(place: Place) -> None:
        if (place.work / path).is_dir():
            (place.work / path).rmdir()
        _write(place, path, "w")

    return interfere


def _link_instead(path: str) -> Theirs:
    def interfere(place: Place) -> None:
        (place.work / path).unlink()
        (place.work / path).symlink_to("/etc/hostname")

    return interfere


def _touched(path: str) -> Theirs:
    return lambda place: os.utime(place.work / path, (1, 1))


# --- to rows and items ---------------------------------------------------------------------------


def _sql(statement: str) -> Theirs:
    def interfere(place: Place) -> None:
        with sqlite3.connect(place.database) as connection:
            changed = connection.execute(statement).rowcount
        connection.close()
        assert changed == 1, statement

    return interfere


def _nothing(_: Place) -> None:
    """Nobody interferes."""


def _posts(text: str) -> Theirs:
    return lambda place: service.post(place.port, place.namespace, text)


def _changes(text: str | None) -> Theirs:
    """Ours becomes another; None: it is gone, and another is there."""

    def interfere(place: Place) -> None:
        items = service.asked(place.port, place.namespace)["items"]
        (ours,) = (at for at, body in items.items() if body == "a note")
        if text is None:
            service.remove(place.port, ours)
            service.post(place.port, place.namespace, "a note")
        else:
            service.change(place.port, ours, text)

    return interfere


# --- the table -----------------------------------------------------------------------------------

CONTENT: Final = ("sha256",)


def _call(tool: str, **args: Any) -> Op:
    return Op(tool, args)


_CREATE = _call("write_file", path="new.txt", content="new", overwrite=False)
_OVERWRITE = _call("write_file", path="a.txt", content="over")
_APPEND = _call("append_file", path="d/b.txt", content="more")
_EDIT = _call("edit_file", path="a.txt", old="two", new="2")
_COPY = _call("copy_file", source="a.txt", target="d/copy.txt")
_MOVE = _call("move_file", source="a.txt", target="d/moved.txt")
_MOVE_OVER = _call("move_file", source="a.txt", target="d/b.txt", overwrite=True)
_DELETE = _call("delete_file", path="a.txt")
_MKDIR = _call("make_dir", path="new")
_MKDIRS = _call("make_dir", path="new/in/side", parents=True)
_RMDIR = _call("delete_dir", path="empty")
_ARCHIVE = _call("archive", source="d", target="d.zip")
_UNPACK = _call("unarchive", source="d.zip", target="out")

_INSERT = _call("sql_insert", table="orders", rows=[{"id": 9, "item": "jam", "price": 1.5}])
_UNNAMED = _call("sql_insert", table="orders", rows=[{"item": "jam"}])
_UPDATE = _call("sql_update", table="orders", where=[{"id": 1}, {"id": 2}], values={"item": "x"})
_REMOVE = _call("sql_delete", table="people", where=[{"name": "Ann"}])

_POST = _call("http_post", text="a post")
_NOTE = _call(NOTES, text="a note")

_FIRST: Final = 'row:orders:{"id": 1}'
_ANN: Final = 'row:people:{"name": "Ann"}'

_FILES: Final = (
    Case("create", "write into it", _CREATE, _rewritten("new.txt"), "file:new.txt", CONTENT),
    Case("create", "change its mode", _CREATE, _chmod("new.txt", 0o600), "file:new.txt", ("mode",)),
    Case("create", "a directory instead", _CREATE, _dir_instead("new.txt"), "file:new.txt"),
    Case(
        "create", "a link instead", _CREATE, _link_instead("new.txt"),
        "new.txt", ("link",), status="SessionError",
    ),
    Case("overwrite", "overwrite it", _OVERWRITE, _rewritten("a.txt"), "file:a.txt", CONTENT),
    Case("overwrite", "delete it", _OVERWRITE, _removed("a.txt"), "file:a.txt", ("kind",)),
    Case("overwrite", "rename it", _OVERWRITE, _renamed("a.txt"), "file:a.txt", ("kind",)),
    Case("overwrite", "change its mode", _OVERWRITE, _chmod("a.txt", 0o640), "file:a.txt",
         ("mode",)),
    Case("overwrite", "a directory instead", _OVERWRITE, _dir_instead("a.txt"), "file:a.txt"),
    Case("append", "append as well", _APPEND, _extended("d/b.txt"), "file:d/b.txt", CONTENT),
    Case("append", "delete it", _APPEND, _removed("d/b.txt"), "file:d/b.txt", ("kind",)),
    Case("edit", "overwrite it", _EDIT, _rewritten("a.txt"), "file:a.txt", CONTENT),
    Case("copy", "write into the copy", _COPY, _extended("d/copy.txt"), "file:d/copy.txt", CONTENT),
    Case("move", "write into it", _MOVE, _extended("d/moved.txt"), "file:d/moved.txt", CONTENT),
    Case("move", "delete it", _MOVE, _removed("d/moved.txt"), "file:d/moved.txt", ("kind",)),
    Case("move", "take its old place", _MOVE, _rewritten("a.txt"), "file:a.txt", ("kind",)),
    Case("move over", "write into it", _MOVE_OVER, _extended("d/b.txt"), "file:d/b.txt", CONTENT),
    Case("delete", "make it anew", _DELETE, _rewritten("a.txt"), "file:a.txt", ("kind",)),
    Case("delete", "a directory instead", _DELETE, _dir_instead("a.txt"), "file:a.txt", ("kind",)),
    Case("mkdir", "change its mode", _MKDIR, _chmod("new", 0o700), "file:new", ("mode",)),
    Case("mkdir", "a file instead", _MKDIR, _file_instead("new"), "file:new", ("kind",)),
    Case("mkdir parents", "change one's mode", _MKDIRS, _chmod("new/in", 0o700), "file:new/in",
         ("mode",)),
    Case("rmdir", "make it anew", _RMDIR, _dir_instead("empty"), "file:empty", ("kind",)),
    Case("rmdir", "a file instead", _RMDIR, _file_instead("empty"), "file:empty", ("kind",)),
    Case("archive", "write into it", _ARCHIVE, _extended("d.zip"), "file:d.zip", CONTENT),
    Case("unarchive", "change its mode", _UNPACK, _chmod("out", 0o700), "file:out", ("mode",),
         first=(_ARCHIVE,)),
    # What is put into a new directory shows when it is to be taken away: that step is refused.
    Case("mkdir", "put a file into it", _MKDIR, _rewritten("new/theirs"), "new",
         ("not empty",), status="failed"),
    Case("mkdir parents", "put a file into it", _MKDIRS, _rewritten("new/in/side/theirs"),
         "new/in/side", ("not empty",), status="failed"),
    Case("unarchive", "write into a member", _UNPACK, _rewritten("out/b.txt"), "out", ("b.txt",),
         (_ARCHIVE,), status="failed"),
    Case("unarchive", "delete a member", _UNPACK, _removed("out/b.txt"), "out", ("b.txt",),
         (_ARCHIVE,), status="failed"),
)  # fmt: skip

_ROWS: Final = (
    Case("insert", "update the row", _INSERT, _sql("UPDATE orders SET price = 2 WHERE id = 9"),
         'row:orders:{"id": 9}', ("price",)),
    Case("insert unnamed", "update the row", _UNNAMED,
         _sql("UPDATE orders SET item = 'theirs' WHERE id = 6"), 'row:orders:{"id": 6}', ("item",)),
    Case("update", "update it too", _UPDATE, _sql("UPDATE orders SET item = 'y' WHERE id = 1"),
         _FIRST, ("item",)),
    Case("update", "another column", _UPDATE, _sql("UPDATE orders SET price = 7 WHERE id = 1"),
         _FIRST, ("price",)),
    Case("update", "delete the row", _UPDATE, _sql("DELETE FROM orders WHERE id = 1"), _FIRST),
    Case("sql delete", "insert another", _REMOVE, _sql("INSERT INTO people VALUES ('Ann', 99)"),
         _ANN),
)  # fmt: skip

_ITEMS: Final = (
    Case("post", "post the same", _POST, _posts("a post"), "item:a post"),
    Case("post", "change it", _NOTE, _changes("theirs"), "items"),
    Case("post", "replace it", _NOTE, _changes(None), "items"),
    Case("post", "add to the list", _NOTE, _posts("theirs"), "items"),
)

_TWINS: Final = tuple(
    Case(write, theirs, op, interfere, first=first)
    for write, op, first, beside in (
        ("create", _CREATE, (), None),
        ("overwrite", _OVERWRITE, (), _rewritten("none.txt")),
        ("append", _APPEND, (), _chmod("d/e", 0o700)),
        ("edit", _EDIT, (), _touched("a.txt")),
        ("copy", _COPY, (), _rewritten("a.txt")),
        ("move", _MOVE, (), _rewritten("theirs.txt")),
        ("move over", _MOVE_OVER, (), None),
        ("delete", _DELETE, (), _rewritten("theirs.txt")),
        ("mkdir", _MKDIR, (), _rewritten("theirs.txt")),
        ("mkdir parents", _MKDIRS, (), _rewritten("theirs.txt")),
        ("rmdir", _RMDIR, (), _file_instead("theirs")),
        ("archive", _ARCHIVE, (), _rewritten("d/b.txt")),
        ("unarchive", _UNPACK, (_ARCHIVE,), None),
        ("insert", _INSERT, (), _sql("UPDATE orders SET price = 2 WHERE id = 5")),
        ("insert unnamed", _UNNAMED, (), _sql("UPDATE people SET age = 2 WHERE name = 'Bob'")),
        ("update", _UPDATE, (), _sql("UPDATE orders SET item = 'theirs' WHERE id = 3")),
        ("sql delete", _REMOVE, (), _sql("INSERT INTO people VALUES ('Anna', 1)")),
        ("post", _POST, (), _posts("theirs")),
    )
    for theirs, interfere in (("nobody", _nothing), ("change what is beside", beside))
    if interfere is not None
)

CASES: Final = (*_FILES, *_ROWS, *_ITEMS, *_TWINS)
