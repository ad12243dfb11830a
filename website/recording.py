"""`docs/quickstart.svg`: the quickstart as it runs, line by line: `python -m website.recording`.

The lines are those that docs/quickstart.md shows, which a test runs; so the recording is true as
long as it is made from them, and a test sees to that. Where motion is not wanted, and where a
picture is printed, all lines are there at once.
"""

import re
from html import escape
from typing import Final

from website.pages import DOCS

TARGET: Final = DOCS / "quickstart.svg"
_COMMAND: Final = "rollcage quickstart --framework python"
_COLUMN, _LINE, _MARGIN, _BAR = 7.6, 17, 16, 30  # pixels
_SECONDS: Final = 0.45  # from one line to the next
_STYLE: Final = """
  .screen { fill: #10151f; } .bar { fill: #232b3a; } .dot { fill: #5b6780; }
  text { font: 12.5px ui-monospace, Menlo, Consolas, monospace; fill: #d7deea; white-space: pre; }
  .typed { fill: #8fc7ff; } .title { font-weight: 700; fill: #ffffff; } .true { fill: #8ed99a; }
  .line { animation: appear 0.01s linear both; }
  @keyframes appear { from { opacity: 0; } to { opacity: 1; } }
  @media (prefers-reduced-motion: reduce), print { .line { animation: none; } }
"""


def shown() -> list[str]:
    """The command and its output, as the quickstart has them."""
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    found = re.search(rf"^\$ {re.escape(_COMMAND)}\n(.*?)^\$ ", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise LookupError(f"docs/quickstart.md shows no `{_COMMAND}`, and a command behind it")
    return [f"$ {_COMMAND}", *found[1].rstrip().splitlines()]


def _kind(line: str) -> str:
    if line.startswith("$") or line.strip().startswith("$"):
        return " typed"
    if "✓" in line:
        return " true"
    return " title" if line[:1].isalpha() and not line.startswith(("An ", "killed")) else ""


def recording() -> str:
    """The picture."""
    lines = shown()
    width = int(max(map(len, lines)) * _COLUMN) + 2 * _MARGIN
    height = _BAR + len(lines) * _LINE + 2 * _MARGIN
    drawn = [
        f'<text class="line{_kind(line)}" x="{_MARGIN}" y="{_BAR + _MARGIN + (n + 0.7) * _LINE:g}" '
        f'style="animation-delay: {n * _SECONDS:.2f}s" xml:space="preserve">{escape(line)}</text>'
        for n, line in enumerate(lines)
        if line
    ]
    title = (
        "Recording of rollcage quickstart: without Rollcage, an agent that is killed and started "
        "again sends each of three mails twice; with it, each once, and undo recalls them"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
            'role="img" aria-labelledby="title">',
            f'<title id="title">{title}</title>',
            f"<style>{_STYLE}</style>",
            f'<rect class="screen" width="{width}" height="{height}" rx="8"/>',
            f'<path class="bar" d="M 0 {_BAR} V 8 Q 0 0 8 0 H {width - 8}',
            f'Q {width} 0 {width} 8 V {_BAR} Z"/>',
            *(f'<circle class="dot" cx="{18 + 18 * n}" cy="15" r="5"/>' for n in range(3)),
            *drawn,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(recording(), encoding="utf-8")
