"""Folders that the version which wrote `rollcage/1` has recorded, as they lay on its disk."""

import base64
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest


@pytest.fixture(scope="session")
def recordings() -> Any:
    """All recordings.

    `programs`: random programs, with the runs in which they were performed, killed and resumed;
    `folders`: by name, folders with a certain kind of run, and what a test has to know of them.
    """
    packed = Path(__file__).parent / "old_recordings.json.gz"
    return orjson.loads(gzip.decompress(packed.read_bytes()))


@pytest.fixture
def recorded(recordings: Any, tmp_path: Path) -> Callable[[str | int], tuple[Path, Any]]:
    """Lay out the files of a recording, by its name or a program's number: its folder, and it."""

    def laid_out(which: str | int) -> tuple[Path, Any]:
        found = recordings["programs" if isinstance(which, int) else "folders"][which]
        for name, content in found["files"].items():
            path = tmp_path / "old" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if "text" in content:
                path.write_text(content["text"], encoding="utf-8", newline="")
            else:
                path.write_bytes(base64.b64decode(content["base64"]))
        return tmp_path / "old", found

    return laid_out
