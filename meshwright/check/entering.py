"""Tensors that a region takes without a place to declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from meshwright.check.author import Types, layout_of
from meshwright.check.reach import Reach


class Entering(NamedTuple):
    """A tensor that a region takes. grad: what is declared of its gradient; None where no place is to declare it."""

    name: str
    value: Tensor
    layout: Types
    grad: Types | None


def undeclarable(args: tuple[Any, ...], kwargs: Mapping[str, Any], function: Callable[..., Any]) -> Iterator[Entering]:
    """What a region takes by keyword, and what its function can reach besides."""
    seen = {id(x) for _, x in Reach().into("", "", [each for each in args if isinstance(each, _PLACED)])}
    search = Reach()
    by_keyword = [each for name, value in kwargs.items() for each in search.into(repr(name), "argument {}", value)]
    for name, x in (*by_keyword, *search.of(function, args)):
        if id(x) not in seen:
            seen.add(id(x))
            yield Entering(name, x, layout_of(x), None)


_PLACED = (Tensor, list, tuple, dict)
"""Arguments of which each tensor has a place in the types that are declared."""
