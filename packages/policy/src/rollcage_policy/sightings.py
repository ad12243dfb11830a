"""An index of the leaves of labelled results: which step returned a text or number first.

A leaf of an argument is found if it contains an indexed leaf, is contained in one, or shares a long
run of characters with one. A lookup costs time by the leaf's own length, plus a search through the
indexed texts; it does not depend on how many leaves there are.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from rollcage_policy.leaves import Leaves, numbers_in

__all__ = ["SHORTEST", "LabelSource", "Sightings"]

SHORTEST: Final = 4
"""Texts of fewer characters are compared as a whole only: as parts they occur anywhere."""

_RUN: Final = 32  # characters of a long leaf that are looked for together
_STRIDE: Final = 16  # between such runs: any _RUN + _STRIDE - 1 characters hold one
_SEGMENT: Final = 1 << 16  # characters that are searched through at once
_END: Final = "\0"  # between the texts of a segment; no normal form has it

# Tokens that are indexed by themselves: addresses, names of hosts and files, long ids.
_WORD: Final = re.compile(r"[^\s<>\"'`(){}\[\],;|]+")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_HOST: Final = re.compile(r"//(?:[^/?#@]*@)?([^/?#:]+)")
_TOKEN_LENGTHS: Final = range(6, 2049)


class LabelSource(NamedTuple):
    """The step whose result holds a value.

    Attributes:
        number: the step's number in its run.
        name: the tool's name.
        earlier: the first step that its label came from, if it came from an earlier step.
        run: the id of its run, if that is an earlier run of the conversation.
    """

    number: int
    name: str
    earlier: LabelSource | None = None
    run: str = ""

    def __str__(self) -> str:
        """`step 7 (summarise), which has it from step 3 (fetch_page)`."""
        step = f"step {self.number} ({self.name})" + (f" of run {self.run}" if self.run else "")
        return step if self.earlier is None else f"{step}, which has it from {self.earlier}"


class _Segment:
    """Texts joined into one, with the offset at which each source's texts begin."""

    def __init__(self) -> None:
        self.text = _END
        self.starts: list[int] = []
        self.sources: list[LabelSource] = []

    def add(self, texts: Iterable[str], source: LabelSource) -> None:
        self.starts.append(len(self.text))
        self.sources.append(source)
        self.text += _END.join(texts) + _END

    def find(self, text: str) -> LabelSource | None:
        at = self.text.find(text)
        return None if at < 0 else self.sources[bisect.bisect_right(self.starts, at) - 1]


class Sightings:
    """The leaves of results, each with the first step that returned it.

    Attributes:
        size: how many characters and entries are kept, as one number.
    """

    def __init__(self) -> None:
        self.size = 0
        self._whole: dict[str, LabelSource] = {}  # texts that are too short for a search in others
        self._small: dict[str, LabelSource] = {}  # texts shorter than a run
        self._lengths: dict[str, set[int]] = {}  # lengths of the small texts, by their beginning
        self._runs: dict[int, LabelSource] = {}  # hashes of runs of longer texts
        self._numbers: dict[str, LabelSource] = {}
        self._in_texts: dict[str, LabelSource] = {}  # numbers in texts
        self._segments: list[_Segment] = []
        self._longest = 0
        self._searched = 0  # characters in segments

    # --- keeping ---------------------------------------------------------------------------------

    def add(self, seen: Leaves, source: LabelSource) -> None:
        """Keep the leaves of a result."""
        texts = [text for text in seen.texts if len(text) >= SHORTEST]
        for text in seen.texts:
            if len(text) < SHORTEST:
                self._whole.setdefault(text, source)
        for digits in seen.numbers:
            self._numbers.setdefault(digits, source)
        for text in texts:
            self._longest = max(self._longest, len(text))
            self._keep(text, source)
            for token in _tokens(text):
                self._keep(token, source)
            for digits in numbers_in(text):
                self._in_texts.setdefault(digits, source)
        if texts:
            if not self._segments or len(self._segments[-1].text) > _SEGMENT:
                self._segments.append(_Segment())
            self._segments[-1].add(texts, source)
        self._searched += sum(len(text) for text in texts)
        kept = (self._whole, self._small, self._runs, self._numbers, self._in_texts)
        self.size = self._searched + 16 * sum(len(each) for each in kept)

    def _keep(self, text: str, source: LabelSource) -> None:
        """Keep a text for a search in longer ones."""
        if len(text) < _RUN:
            self._small.setdefault(text, source)
            self._lengths.setdefault(text[:SHORTEST], set()).add(len(text))
            return
        for at in range(0, len(text) - _RUN + 1, _STRIDE):
            self._runs.setdefault(hash(text[at : at + _RUN]), source)

    # --- finding ---------------------------------------------------------------------------------

    def find(self, wanted: Leaves) -> LabelSource | None:
        """Return the source of the first wanted leaf that is indexed; None without one."""
        for digits in wanted.numbers:
            found = self._numbers.get(digits) or self._in_texts.get(digits)
            if found is not None:
                return found
        for text in wanted.texts:
            found = self._find_text(text)
            if found is not None:
                return found
        return None

    def _find_text(self, text: str) -> LabelSource | None:
        if len(text) < SHORTEST:
            return self._whole.get(text)
        if len(text) <= self._longest:
            for segment in self._segments:
                found = segment.find(text)
                if found is not None:
                    return found
        return self._held_by(text) or self._named_in(text)

    def _held_by(self, text: str) -> LabelSource | None:
        """Return the source of an indexed leaf, or of a run of one, in a text."""
        lengths, small = self._lengths, self._small
        if lengths:
            for at in range(len(text) - SHORTEST + 1):
                known = lengths.get(text[at : at + SHORTEST])
                for length in known or ():
                    found = small.get(text[at : at + length])
                    if found is not None:
                        return found
        runs = self._runs
        if runs:
            for at in range(len(text) - _RUN + 1):
                found = runs.get(hash(text[at : at + _RUN]))
                if found is not None:
                    return found
        return None

    def _named_in(self, text: str) -> LabelSource | None:
        """Return the source of an indexed number in a text."""
        if self._numbers:
            for digits in numbers_in(text):
                if digits in self._numbers:
                    return self._numbers[digits]
        return None


def _has_digit(text: str) -> bool:
    return any(each.isdigit() for each in text)


def _tokens(text: str) -> set[str]:
    """Return the tokens of a text that are indexed by themselves."""
    found: set[str] = set()
    for word in set(_WORD.findall(text)):
        token = word.strip(".:!?*_")
        if "://" in token:
            found |= {token, *_HOST.findall(token)}
        elif "@" in token:
            found |= {token, token.rpartition(":")[2]}  # after mailto:
        elif "." in token or (len(token) >= 8 and _has_digit(token) and not _DATE.match(token)):
            found.add(token)
    found.discard(text)
    return {token for token in found if len(token) in _TOKEN_LENGTHS}
