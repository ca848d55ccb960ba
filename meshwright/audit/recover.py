"""Errors of ops that stand between modules: whose output is to blame, and with what the check goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from meshwright.audit import where
from meshwright.audit.audited import Audited
from meshwright.audit.blame import origin_of
from meshwright.audit.boundary import Boundary
from meshwright.audit.suggest import as_found, changed, shown
from meshwright.check import layout_of, no_typecheck
from meshwright.check.operand import whole_shape
from meshwright.comm.declare import assert_type
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, SpmdType
from meshwright.types.layout import SpmdLayout


class Recover(TorchFunctionMode):
    """Inside `typecheck`: a refused op of a module that has others inside is told, and run on what it should be given.

    What should have been given is found by trying: the declared output of another module, of another type on one axis.
    """

    def __init__(self, audit: Audited) -> None:
        super().__init__()
        self.audit = audit

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except SpmdTypeError as error:
            audit = self.audit
            if not audit.judging or not audit.at or audit.at[-1].is_leaf:
                raise
            with audit.aside():
                return self._recovered(audit.at[-1], func, args, kwargs, error)

    def _recovered(
        self, boundary: Boundary, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, error: SpmdTypeError
    ) -> Any:
        problem = error.problems[0]
        for number, axis, kind in _changes(args):
            x = args[number]
            layout = changed(SpmdLayout(layout_of(x)), axis, kind)
            try:
                given = self._empty(x, layout)
                result = func(*(given if n == number else arg for n, arg in enumerate(args)), **kwargs)
            except Exception:  # not the type that is wanted here, for whatever reason
                continue
            line = where.running()
            at, what, fix = f"{boundary.path}.forward: {line}", problem.what, problem.fix
            origin = origin_of(x)
            if origin is not None:
                at = f"{origin.path}.sharding_config.out_dst_shardings"
                taker = f"{type(boundary.module).__name__}, {line}"
                what = f"hands on {SpmdLayout(layout_of(x))} to {taker}: {problem.what}"
                fix = f"out_dst_shardings = {shown(as_found(self.audit, origin.layout, layout))}"
            self.audit.tell(replace(problem, where=at, what=what, fix=fix))
            return result
        raise error

    def _empty(self, x: Tensor, layout: SpmdLayout) -> Tensor:
        view = self.audit.stated
        with no_typecheck():
            shape = whole_shape(tuple(x.shape), layout_of(x), self.audit.stated)
            local = layout.local_shape(shape, view.degree, view.index)
            made = torch.empty(local, dtype=x.dtype, device="meta", requires_grad=x.requires_grad)
        return assert_type(made, layout)


def _changes(args: Sequence[Any]) -> Iterator[tuple[int, str, SpmdType]]:
    """Which argument could be of which other type on one axis: the likeliest to be wrong first.

    That is a sum that is pending, then what is whole where another is not, then what a module handed on.
    """
    tensors = [(number, x) for number, x in enumerate(args) if isinstance(x, Tensor) and layout_of(x)]
    held = [(number, x, axis, kind) for number, x in tensors for axis, kind in layout_of(x).items()]
    held.sort(key=lambda each: (_SUSPECT.index(each[3].letter), origin_of(each[1]) is None))
    for number, x, axis, kind in held:
        others = [layout_of(y).get(axis) for other, y in tensors if other != number]
        kinds = [*(other for other in others if other is not None), R, I, *(S(dim) for dim in range(x.dim()))]
        yield from ((number, axis, other) for other in dict.fromkeys(kinds) if other is not kind and other is not P)


_SUSPECT: Final = "PRVIS"
