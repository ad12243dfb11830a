"""What is recorded, and what answers a call, stays as it was: told by the stories that are kept.

A run that was begun by an earlier version is resumed by a later one. So a change of these texts is
one that users notice: it is on purpose, or wrong.
"""

import pytest

from tests.laws.kept import KEPT, STORIES, story


@pytest.mark.parametrize("number", STORIES)
def test_a_story_is_told_as_before(number: int) -> None:
    text = (KEPT / f"{number:03}.txt").read_text(encoding="utf-8")
    assert story(number).splitlines() == text.splitlines()


def test_no_story_is_kept_for_nothing() -> None:
    assert {int(path.stem) for path in KEPT.iterdir()} == {*STORIES}
