"""The frameworks that the quickstart knows, and which of them are installed."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Final, NamedTuple

__all__ = ["ALL", "PLAIN", "Framework", "installed", "unguarded"]


class Framework(NamedTuple):
    """One way of writing an agent."""

    key: str  # of its module here, its extra of rollcage, and the option
    name: str
    distribution: str
    needs: tuple[str, ...]  # modules: the framework's own first, then its adapter's

    @property
    def job(self) -> str:
        """The name of its runs."""
        return f"reminders-{self.key}"

    @property
    def title(self) -> str:
        """Its name, with its version."""
        version = f" {metadata.version(self.distribution)}" if self.distribution else ""
        return f"{self.name}{version}"


PLAIN: Final = Framework("python", "Plain Python", "", ())
ALL: Final = (
    Framework("langchain", "LangChain", "langchain", ("langchain", "rollcage_langchain")),
    Framework("autogen", "AutoGen", "autogen-agentchat", ("autogen_agentchat", "rollcage_autogen")),
    Framework("crewai", "CrewAI", "crewai", ("crewai", "rollcage_crewai")),
)


def installed() -> list[Framework]:
    """Return the installed frameworks with an adapter; plain Python if there is none."""
    return [each for each in ALL if all(map(find_spec, each.needs))] or [PLAIN]


def unguarded() -> list[Framework]:
    """Return the frameworks that are installed without their adapter."""
    return [each for each in ALL if find_spec(each.needs[0]) and not find_spec(each.needs[1])]
