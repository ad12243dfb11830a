"""The planned change of a client's file, before anything is written."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcage_cli.output import visible

from rollcage_mcp.install.clients import Client
from rollcage_mcp.install.entries import Config, ServerEntry
from rollcage_mcp.install.errors import ConfigChanged, ConfigInvalid
from rollcage_mcp.install.file import ConfigFile
from rollcage_mcp.install.json_text import Place
from rollcage_mcp.install.records import FileChange, Records

__all__ = ["InstallPlan", "plan_install", "plan_uninstall", "read"]


@dataclasses.dataclass(frozen=True)
class InstallPlan:
    """A change of a client's file.

    Attributes:
        file: as it was read.
        config: its content.
        text: its new text.
        servers: the changed servers.
        left: the unchanged servers, each with the reason.
        keeps: the record of the change.
        drops: the servers whose records are dropped.
    """

    file: ConfigFile
    config: Config
    text: str
    servers: tuple[ServerEntry, ...] = ()
    left: tuple[tuple[ServerEntry, str], ...] = ()
    keeps: Mapping[Place, tuple[FileChange, ...]] = dataclasses.field(
        default_factory=dict[Place, tuple[FileChange, ...]]
    )
    drops: tuple[Place, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the file will change."""
        return self.text != self.file.text

    def diff(self) -> list[str]:
        """Return the change for display, line by line, without other values of the file."""
        places = [each.place for each in self.servers]
        after = Config(self.config.client, self.text).shown(places)
        name = visible(str(self.file.path))
        return [
            visible(line)
            for line in difflib.unified_diff(
                self.config.shown(places).splitlines(), after.splitlines(),
                name, name, lineterm="", n=1,
            )
        ]  # fmt: skip

    def write(self) -> None:
        """Carry it out.

        Raises:
            ConfigChanged: the file was changed meanwhile.
            ConfigInvalid: the file can't be written.
        """
        records = Records()
        with records.alone():
            if self.keeps:  # first, so that the change is known after a crash
                records.keep(self.file.real, dict(self.keeps))
            if self.changes:
                self.file.write(self.text)
            if self.drops:
                records.drop(self.file.real, list(self.drops))


def read(client: Client, path: Path) -> tuple[ConfigFile, Config]:
    """Return a client's file, and its content. Raises `ConfigInvalid`."""
    file = ConfigFile(path)
    try:
        return file, Config(client, file.text)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{visible(str(path))} can't be used: {visible(str(error))}") from None


def plan_install(
    client: Client, path: Path, names: Sequence[str], guard: Sequence[str]
) -> InstallPlan:
    """Plan to run a client's servers through a guard.

    Args:
        client: the client.
        path: its file.
        names: the servers; empty: all possible ones.
        guard: `rollcage mcp run …`, including the `--`.

    Raises:
        ConfigInvalid: the file can't be used or written, or a named server does not exist, or
            can't be guarded.
    """
    file, config = read(client, path)
    chosen = _chosen(config, path, names)
    changes: dict[Place, str | None] = {}
    keeps: dict[Place, tuple[FileChange, ...]] = {}
    servers = [each for each in chosen if each.state == "bare"]
    left = [(each, each.why or "it is guarded already") for each in chosen if each.state != "bare"]
    refused = next((each for each, _ in left if names and each.state == "left"), None)
    if refused is not None:
        raise ConfigInvalid(f"{visible(refused.name)} can't be guarded here: {refused.why}")
    for each in servers:
        own = config.guarded(each, guard)
        changes |= own
        keeps[each.place] = tuple(
            FileChange(place=place, before=config.text.raw(place), after=text)
            for place, text in own.items()
            if text is not None
        )
    text = config.text.changed(changes) if changes else file.text
    plan = InstallPlan(file, config, text, tuple(servers), tuple(left), keeps)
    if changes:
        file.check()
        _check(plan, changes)
    return plan


def _check(plan: InstallPlan, changes: Mapping[Place, str | None]) -> None:
    """Check that exactly these values change, and that the change can be reverted.

    Raises:
        ConfigInvalid: the file has an unexpected form.
    """
    after = Config(plan.config.client, plan.text)
    backward = {own.place: own.before for each in plan.keeps.values() for own in each}
    restored = Config(plan.config.client, after.text.changed(backward))
    values = {place: plan.config.text.value_of(text) for place, text in changes.items() if text}
    is_said = all(after.value(place) == value for place, value in values.items())
    if not is_said or restored.text.text != plan.file.text:
        raise ConfigInvalid(
            f"{visible(str(plan.file.path))} can't be changed so that it can be restored; "
            f"write the guard into it by hand: docs/mcp.md says how"
        )


def plan_uninstall(client: Client, path: Path, names: Sequence[str]) -> InstallPlan:
    """Plan to revert an installation.

    Args:
        client: the client.
        path: its file.
        names: the servers; empty: all installed ones.

    Raises:
        ConfigInvalid: the file can't be used or written, or a named server was not installed.
        ConfigChanged: an installed entry was changed since.
    """
    file, config = read(client, path)
    known = Records().of(file.real)
    chosen = [each for each in _chosen(config, path, names) if names or each.place in known]
    unknown = [each for each in chosen if each.place not in known]
    if unknown:
        raise ConfigInvalid(
            f"{visible(unknown[0].name)} was not installed by this command, so its earlier entry "
            f"is not known. The server's own command follows -- in {visible(str(path))}"
        )
    changes: dict[Place, str | None] = {}
    servers: list[ServerEntry] = []
    for each in chosen:
        differs = [own for own in known[each.place] if not _is(config, own.place, own.after)]
        if not differs:
            servers.append(each)
            changes |= {own.place: own.before for own in known[each.place]}
        elif not all(_is(config, own.place, own.before) for own in known[each.place]):
            raise ConfigChanged(
                f"{visible(each.name)} of {visible(str(path))} was changed since it was installed: "
                f"{', '.join(own.place[-1] for own in differs)}. Nothing was written: change it by "
                f"hand; the server's own command follows --"
            )
    here = {each.place for each in config.entries}
    gone = [place for place in known if place not in here] if not names else []
    text = config.text.changed(changes) if changes else file.text
    if changes:
        file.check()
    drops = (*(each.place for each in chosen), *gone)
    return InstallPlan(file, config, text, tuple(servers), drops=drops)


def _is(config: Config, place: Place, text: str | None) -> bool:
    value: Any = config.value(place)
    return value is None if text is None else value == config.text.value_of(text)


def _chosen(config: Config, path: Path, names: Sequence[str]) -> list[ServerEntry]:
    """Return the servers with these names; all without names. Raises `ConfigInvalid`."""
    missing = sorted({*names} - {each.name for each in config.entries})
    if missing:
        listed = ", ".join(sorted({visible(each.name) for each in config.entries})) or "none"
        raise ConfigInvalid(f"{visible(str(path))} has no server {missing[0]!r}: it has {listed}")
    return [each for each in config.entries if not names or each.name in names]
