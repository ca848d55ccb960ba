"""Trees of layouts, built as an output is: tuples, lists and dicts whose leaves are layouts or what stands for one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from meshwright.types.kinds import SpmdType


class Unlike(ValueError):
    """Two trees are not built alike."""


def is_leaf(tree: Any) -> bool:
    """Not a tuple, list or dict; {axis: type} is a leaf, and so is None, which declares nothing."""
    if isinstance(tree, Mapping):
        return all(isinstance(kind, SpmdType) for kind in tree.values())
    return not isinstance(tree, (tuple, list))


def map_tree(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`fn` on every leaf of `tree` and what stands in its place in `others`; built as the last of them is.

    Errors: `Unlike` where another tree has not the branches of the first.
    """
    if is_leaf(tree):
        return fn(tree, *others)
    for other in others:
        if isinstance(tree, Mapping):
            alike = isinstance(other, Mapping) and set(other) == set(tree)
        else:
            alike = isinstance(other, (tuple, list)) and len(other) == len(tree)
        if not alike:
            raise Unlike(f"declared as {describe(tree)}, but it is {describe(other)}")
    like = others[-1] if others else tree
    if isinstance(tree, Mapping):
        return _dict_like(like, {key: map_tree(fn, tree[key], *(other[key] for other in others)) for key in like})
    return _tuple_like(like, [map_tree(fn, *branches) for branches in zip(tree, *others, strict=True)])


def describe(tree: Any) -> str:
    """What a tree is built like, for an error."""
    if isinstance(tree, Mapping) and not is_leaf(tree):
        return f"a dict of {', '.join(map(str, tree))}"
    if isinstance(tree, (tuple, list)):
        return f"a {'list' if isinstance(tree, list) else 'tuple'} of {len(tree)}"
    return "None" if tree is None else "one tensor"


def _dict_like(like: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if not isinstance(like, MutableMapping):
        return values
    made = copy.copy(like)
    made.update(values)
    return made


def _tuple_like(like: Sequence[Any], values: list[Any]) -> Any:
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)  # type: ignore[call-arg]
