"""`python -m rollcage_conformance`: write the golden traces again, from the reference harness."""

import json
import tempfile
from pathlib import Path

from rollcage_conformance.reference import ReferenceHarness
from rollcage_conformance.stage import Stage
from rollcage_conformance.suites.trace import GOLDENS, traces


def main(folder: Path) -> None:
    """Write a file for each golden scenario into `folder`."""
    for name in GOLDENS:
        with tempfile.TemporaryDirectory() as store:
            made = traces(name, Stage(ReferenceHarness(), Path(store)), "sync")
        text = json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).parent / "goldens")
