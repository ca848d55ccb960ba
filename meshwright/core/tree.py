"""Trees of layouts, built as an output is: tuples, lists and dicts whose leaves are layouts or what stands for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.types.kinds import SpmdType
from meshwright.types.layout import SpmdLayout


def is_leaf(tree: Any) -> bool:
    """Not a tuple, list or dict; {axis: type} is a leaf, and so is an empty layout."""
    if isinstance(tree, Mapping) and not isinstance(tree, SpmdLayout):
        return len(tree) > 0 and all(isinstance(kind, SpmdType) for kind in tree.values())
    return not isinstance(tree, (tuple, list))


def map_tree(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`fn` on every leaf of `tree` and what stands in its place in `others`; None stays None.

    Errors: `ValueError` where another tree has not the structure of the first.
    """
    if tree is None:
        return None
    if is_leaf(tree):
        return fn(tree, *others)
    for other in others:
        if isinstance(tree, Mapping):
            alike = isinstance(other, Mapping) and set(other) == set(tree)
        else:
            alike = isinstance(other, (tuple, list)) and len(other) == len(tree)
        if not alike:
            raise ValueError(f"declared as {_shape(tree)}, but it is {_shape(other)}")
    if isinstance(tree, Mapping):
        return {key: map_tree(fn, branch, *(other[key] for other in others)) for key, branch in tree.items()}
    return tuple(map_tree(fn, *branches) for branches in zip(tree, *others, strict=True))


def _shape(tree: Any) -> str:
    if isinstance(tree, Mapping) and not is_leaf(tree):
        return f"a dict of {', '.join(map(str, tree))}"
    return f"a tuple of {len(tree)}" if isinstance(tree, (tuple, list)) else "one tensor"
