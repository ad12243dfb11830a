"""Finish the site that Zensical built: `python -m website [FOLDER]`; exit code 1 with findings."""

import sys
from pathlib import Path

from website.links import findings
from website.pages import ROOT, missing_pages, write_texts


def main(site: Path) -> int:
    """Write what coding agents read, then check the whole."""
    wrong = [f"{page}: is in no group of mkdocs.yml" for page in missing_pages()]
    write_texts(site)
    wrong += findings(site)
    count = len(list(site.rglob("*.html")))
    sys.stdout.writelines(f"{line}\n" for line in [*wrong, f"{count} pages, {len(wrong)} findings"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "site"))
