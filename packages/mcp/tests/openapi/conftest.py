"""A service with an OpenAPI document, and the command line of core's tests."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import cli, plain_environment, store  # noqa: F401 - pytest finds them here
from pets import PETS, Pets, served_pets


@pytest.fixture
def pets() -> Iterator[Pets]:
    """The server."""
    with served_pets() as own:
        yield own


@pytest.fixture
def files(tmp_path: Path, pets: Pets) -> Callable[..., Path]:
    """Writes a document, and the file of servers that names it."""

    def write(document: Any = PETS, *, name: str = "pets.yaml", more: str = "") -> Path:
        text = document
        if not isinstance(document, str):
            is_yaml = name.endswith("yaml")
            text = yaml.safe_dump(document) if is_yaml else json.dumps(document)
        (tmp_path / name).write_text(text)
        servers = tmp_path / "servers.toml"
        servers.write_text(f'[servers.pets]\nopenapi = "{name}"\nurl = "{pets.url}"\n{more}')
        return servers

    return write
