"""The outline of a plan: its steps, their calls and their order; no argument, no result.

It is kept in the store when an execution begins, under the plan's digest, so that a program with
only the store can draw the execution: a trace has the digest. Nothing else of a plan is kept,
because arguments may be confidential. Reading an outline runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

import pydantic
from rollcage import Store

from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.graph import Checked, Graph, Node, nodes_of
from rollcage_workflow.plan import PlanStep

__all__ = ["KIND", "Box", "JumpLine", "Outline", "keep_outline", "kept_outline", "outline_of"]

KIND: Final = "plans"  # of documents
_LONGEST: Final = 200  # characters of a step's caption
_MOST_BYTES: Final = 4_000_000
_MOST_BOXES: Final = 5_000
_NAMES: Final = ("call", "agent", "workflow")  # kinds whose caption is a name

Said = Annotated[str, pydantic.Field(max_length=_LONGEST)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class JumpLine(_Part):
    """A jump to another step.

    Attributes:
        to: the step.
        when: the condition.
        most: how many times, at the most; None: ahead, past the steps in between.
    """

    to: Said
    when: Said
    most: int | None = None

    def __str__(self) -> str:
        when = self.when.removeprefix("=")
        return f"{when}, at most {self.most} times" if self.most else when


class Box(_Part):
    """A step.

    Attributes:
        name: its name in its block.
        kind: as in `rollcage_workflow.plan.KINDS`.
        says: its call, its wait, or its list.
        before: the steps of its block before it.
        when: its condition; empty without one.
        jump: where it may jump.
        inner: the steps inside it.
    """

    name: Said
    kind: Said
    says: Said = ""
    before: tuple[Said, ...] = ()
    when: Said = ""
    # the second name is that of outlines which were kept before jumps could lead ahead
    jump: JumpLine | None = pydantic.Field(
        default=None, validation_alias=pydantic.AliasChoices("jump", "back")
    )
    inner: tuple[Box, ...] = ()


class Outline(_Part):
    """The outline of a plan.

    Attributes:
        format: the format of the document.
        name: the plan's name.
        boxes: its steps, each after its dependencies.
    """

    format: Literal["rollcage/plan/1"] = "rollcage/plan/1"
    name: Said
    boxes: tuple[Box, ...] = pydantic.Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Self:
        for block in _blocks(self.boxes):
            seen: set[str] = set()
            for box in block:
                if box.name in seen or not seen.issuperset(box.before):
                    raise ValueError("a step is there twice, or before one that it comes after")
                seen.add(box.name)
        return self

    @property
    def count(self) -> int:
        """Return how many steps there are, including inner steps."""
        return sum(map(len, _blocks(self.boxes)))

    def seen(self, *, values: bool) -> Outline:
        """Return the outline for a viewer: conditions and messages may hold values."""
        return self if values else self.model_copy(update={"boxes": _hidden(self.boxes)})


def outline_of(checked: Checked) -> Outline:
    """Return the outline of a plan."""
    return Outline(name=checked.plan.name, boxes=_boxes(checked.graph))


def keep_outline(store: Store, checked: Checked) -> None:
    """Keep the outline of a plan in the store, if it is not there yet.

    The outline of a plan with more than 5,000 steps is not kept: it would be too large to draw.

    Raises:
        StoreError: the outline can't be read, or can't be stored.
    """
    digest = checked.plan.digest
    if store.get(KIND, digest) is not None:
        return
    outline = outline_of(checked)
    data = outline.model_dump_json(exclude_defaults=True).encode()
    if outline.count <= _MOST_BOXES and len(data) <= _MOST_BYTES:
        store.swap(KIND, digest, None, data)


def kept_outline(store: Store, digest: str) -> Outline | None:
    """Return the outline of the plan with this digest; None if none was kept.

    Raises:
        WorkflowError: the stored document is not an outline.
        StoreError: the outline can't be read.
    """
    held = store.get(KIND, digest) if digest.isalnum() else None
    if held is None:
        return None
    try:
        if len(held) > _MOST_BYTES:
            raise ValueError
        outline = Outline.model_validate_json(held)
        if outline.count > _MOST_BOXES:
            raise ValueError
    except ValueError:
        raise WorkflowError(
            f"the stored outline of the plan {digest[:12]} is damaged: remove the document "
            f"{KIND}/{digest}, and the next attempt at an execution stores it again"
        ) from None
    return outline


def _boxes(graph: Graph) -> tuple[Box, ...]:
    nodes = {node.name: node for node in nodes_of(graph.units)}
    done: dict[str, Box] = {}
    waiting = [*nodes.values()]
    while waiting:
        for node in waiting:
            if done.keys() >= {*node.before}:
                done[node.name] = _box(node)
        waiting = [node for node in waiting if node.name not in done]
    return tuple(done.values())


def _box(node: Node) -> Box:
    step, jump = node.step, node.step.next
    line = None
    if jump is not None:
        line = JumpLine(to=jump.to, when=jump.when[:_LONGEST], most=jump.most)
    return Box(
        name=node.name,
        kind=step.kind,
        says=_caption(step)[:_LONGEST],
        before=node.before,
        when=(step.when or "")[:_LONGEST],
        jump=line,
        inner=() if node.inner is None else _boxes(node.inner),
    )


def _caption(step: PlanStep) -> str:
    if step.call or step.agent or step.workflow:
        return str(step.call or step.agent or step.workflow)
    if step.wait is not None:
        wait = step.wait
        return wait.signal or wait.until or wait.approval or f"{wait.seconds:g} s"
    if step.each is not None:
        return f"each of {step.each.over}"
    if step.repeat is not None:
        return f"until {step.repeat.until}"
    return step.team.mode if step.team is not None else ""


def _hidden(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """Return steps without the texts that may hold a value."""
    return tuple(
        box.model_copy(
            update={
                "says": box.says if box.kind in _NAMES else "",
                "when": "…" if box.when else "",
                "jump": None if box.jump is None else box.jump.model_copy(update={"when": "…"}),
                "inner": _hidden(box.inner),
            }
        )
        for box in boxes
    )


def _blocks(boxes: tuple[Box, ...]) -> Iterator[tuple[Box, ...]]:
    """Yield a block, and all blocks inside it."""
    waiting = [boxes]
    while waiting:
        block = waiting.pop()
        yield block
        waiting += [box.inner for box in block]
