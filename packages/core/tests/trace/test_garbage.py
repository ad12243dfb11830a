"""A process that resumes one run after the other, as workers do, keeps nothing of those."""

import subprocess
import sys
from pathlib import Path

RESUMES = """
import gc, sys
from rollcage import tool
from rollcage import Session

@tool(effect="write")
def write(number: int) -> int:
    return number

def attempt(job: str, calls: int) -> None:
    try:
        with Session(job, store=sys.argv[1]):
            for number in range(calls):
                write(number)
            raise KeyError
    except KeyError:
        pass

for each in range(20):
    attempt(f"job-{each}", 5)
gc.collect()
before = len(gc.get_objects())
most = before
for each in range(500):
    attempt(f"job-{each % 20}", 5)
    most = max(most, len(gc.get_objects()))
print(before, most)
"""


def test_what_was_made_of_a_recording_is_collected_when_it_is_not_used_any_more(
    tmp_path: Path,
) -> None:
    """Each resume leaves some thousand objects that refer to each other."""
    given = [sys.executable, "-c", RESUMES, str(tmp_path / "store")]
    said = subprocess.run(given, check=True, capture_output=True, timeout=300).stdout
    before, most = map(int, said.split())
    assert most < 2 * before
