"""Ten steps, killed in the ninth. The second process replays eight and runs the rest."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rollcage import Session, tool

CITIES = {"Bergen": 8.5, "Lisbon": 21.0, "Nairobi": 24.5, "Osaka": 17.5, "Quito": 14.0}


@tool(effect="read")
def measure(city: str) -> float:
    """Read the temperature in a city, in °C."""
    print(f"  measuring {city}")
    if os.environ.get("DIE_AT") == city:
        os.kill(os.getpid(), signal.SIGKILL)
    return CITIES[city]


@tool(effect="write")
def report(city: str, celsius: float) -> None:
    """Append a line to the report."""
    print(f"  reporting {city}")
    with Path("report.txt").open("a", encoding="utf-8") as file:
        file.write(f"{city}: {celsius}\n")


def job() -> None:
    """Measure and report, city by city: ten steps."""
    with Session("weather report") as session:
        for city in CITIES:
            report(city, measure(city))
        print(f"  {session.stats.hits} steps replayed, {session.stats.misses} run")


def start_job(folder: str, die_at: str = "") -> int:
    """Run the job in a process of its own; how it ended."""
    command = [sys.executable, __file__, "job"]
    environment = {**os.environ, "DIE_AT": die_at}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def main() -> None:
    """Kill the job in its ninth step, then start it again."""
    with tempfile.TemporaryDirectory() as folder:
        print("first process:", flush=True)
        ended = start_job(folder, die_at="Quito")
        assert ended == -signal.SIGKILL
        print("killed in step 9\n\nsecond process:", flush=True)
        assert start_job(folder) == 0
        lines = (Path(folder) / "report.txt").read_text(encoding="utf-8").splitlines()
        assert lines == [f"{city}: {celsius}" for city, celsius in CITIES.items()]
        print(f"\nthe report has {len(lines)} lines, each once")


if __name__ == "__main__":
    if sys.argv[1:] == ["job"]:
        job()
    else:
        main()
