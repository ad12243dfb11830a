"""Random programs, for the laws."""

from hypothesis import strategies as st
from programs import Block, Branches, Node, Op, Program, Turn

ops: st.SearchStrategy[Op] = st.builds(
    Op,
    tool=st.sampled_from(["write", "write", "plain", "stream", "thread", "read", "pure"]),
    arg=st.integers(0, 1),  # few, so that many calls are identical
    does=st.sampled_from(
        ["work"] * 5 + ["fail", "lose before", "lose after", "wait", "refuse", "pause"]
    ),
)
still: st.SearchStrategy[Op] = st.builds(  # what changes nothing
    Op, tool=st.sampled_from(["read", "pure"]), arg=st.integers(0, 1)
)

AFTER: st.SearchStrategy[tuple[frozenset[int], ...]] = st.tuples(  # by line, some earlier ones
    st.just(frozenset()),
    st.frozensets(st.just(0)),
    st.frozensets(st.integers(0, 1)),
)


def _deeper(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    some = st.lists(inner, min_size=1, max_size=3).map(tuple)
    nested = st.builds(
        Op,
        tool=st.sampled_from(["outer", "scope"]),
        arg=st.integers(0, 1),
        does=st.sampled_from(["work"] * 5 + ["wait", "refuse"]),
        inner=some,
    )
    block = st.builds(Block, some, st.booleans())
    together = st.lists(st.one_of(ops, nested, block), min_size=1, max_size=3).map(tuple)
    line = st.one_of(some, st.lists(st.one_of(still, inner), max_size=2).map(tuple))
    lines = st.lists(line, min_size=1, max_size=3).map(tuple)
    branches = st.one_of(st.builds(Branches, lines), st.builds(Branches, lines, AFTER))
    return st.one_of(nested, st.builds(Turn, together), branches, block)


nodes: st.SearchStrategy[Node] = st.recursive(ops, _deeper, max_leaves=6)
programs: st.SearchStrategy[Program] = st.lists(nodes, min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1)
