"""What a call says of a step beyond its types: dims of lists, lengths of rows, dtypes on the wire and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import FLAG, MAPPING, Kind, demand, optional
from meshwright.types.transition import Op, Step


@dataclass(frozen=True)
class Options:
    """Nothing is said by default.

    dims: of a list, V, the dim of the whole tensor along which it is stacked, before and after; () is dim 0.
    rows: how many rows of dim 0 go to each rank and come from each, where an all_to_all states them.
    op_dtype: the dtype in which the step is done; out_dtype: that of its result.
    back_op_dtype, back_out_dtype: the same of the gradient, which else comes back in the dtype of the input.
    inplace: the result takes the place of the input.
    """

    dims: tuple[int, int] | tuple[()] = ()
    rows: tuple[tuple[int, ...], tuple[int, ...]] | tuple[()] = ()
    op_dtype: torch.dtype | None = None
    out_dtype: torch.dtype | None = None
    back_op_dtype: torch.dtype | None = None
    back_out_dtype: torch.dtype | None = None
    inplace: bool = False

    @cached_property
    def backward(self) -> Options:
        """Those of the gradient."""
        if self == PLAIN:
            return self
        return Options(
            dims=self.dims[::-1],
            rows=self.rows[::-1],
            op_dtype=self.back_op_dtype,
            out_dtype=self.back_out_dtype,
            back_op_dtype=self.op_dtype,
            back_out_dtype=self.out_dtype,
        )

    def part(self, first: bool, last: bool) -> Options:
        """Those of one of several steps: all are done in `op_dtype`, the last forward and backward has `out_dtype`."""
        return replace(
            self,
            out_dtype=self.out_dtype if last else None,
            back_out_dtype=self.back_out_dtype if first else None,
        )


PLAIN: Final = Options()

DTYPE: Final = Kind(lambda value: isinstance(value, torch.dtype), "a dtype", "torch.float32", Code.PRECISION)
_OPTIONAL: Final = {"op_dtype": optional(DTYPE), "out_dtype": optional(DTYPE), "backward_options": optional(MAPPING)}
_BACK: Final = {"op_dtype": optional(DTYPE), "out_dtype": optional(DTYPE), "async_op": FLAG}


def on_the_wire(run: Callable[[Tensor], Tensor], step: Step, options: Options) -> Callable[[Tensor], Tensor]:
    """`run` in `op_dtype`, its result in `out_dtype`.

    Where only `out_dtype` is said, a step that sums or drops nothing moves the smaller of the two dtypes.
    """
    op_dtype, out_dtype = options.op_dtype, options.out_dtype
    if op_dtype is None and out_dtype is None:
        return run
    if op_dtype is None and out_dtype is not None and step.op in (Op.ALL_GATHER, Op.ALL_TO_ALL):
        return lambda x: run(x.to(out_dtype) if out_dtype.itemsize < x.dtype.itemsize else x).to(out_dtype)

    def cast(x: Tensor) -> Tensor:
        y = run(x if op_dtype is None else x.to(op_dtype))
        return y if out_dtype is None else y.to(out_dtype)

    return cast


def dtypes(
    axis: object,
    op_dtype: torch.dtype | None,
    out_dtype: torch.dtype | None,
    backward_options: Mapping[str, Any] | None,
    async_op: bool,
) -> Options:
    """Of the arguments that all calls share. axis: None where the call is about a whole layout.

    Errors: `SpmdTypeError` for `async_op`, for keys of `backward_options` that there are not, and for what is no dtype.
    """
    if op_dtype is None and out_dtype is None and backward_options is None and async_op is False:
        return PLAIN
    where = "redistribute" if axis is None else f"axis {axis!r}"
    demand(where, "op_dtype", op_dtype, _OPTIONAL["op_dtype"])
    demand(where, "out_dtype", out_dtype, _OPTIONAL["out_dtype"])
    demand(where, "backward_options", backward_options, _OPTIONAL["backward_options"])
    demand(where, "async_op", async_op, FLAG)
    back = dict(backward_options or {})
    for name, value in back.items():
        if name in _BACK:
            demand(where, f"backward_options[{name!r}]", value, _BACK[name])
    if async_op or back.pop("async_op", False):
        raise SpmdTypeError(
            Problem(
                where=where,
                what="async_op=True: a result that has not arrived",
                why="every call returns a tensor that is there; a compiled graph overlaps collectives by itself",
                fix="leave async_op out",
                code=Code.NO_STEP,
            )
        )
    found = Options(
        op_dtype=op_dtype,
        out_dtype=out_dtype,
        back_op_dtype=back.pop("op_dtype", None),
        back_out_dtype=back.pop("out_dtype", None),
    )
    if back:
        raise SpmdTypeError(
            Problem(
                where=where,
                what=f"backward_options has no {', '.join(map(repr, back))}",
                why="the gradient has a dtype in which it is carried and one in which it comes back",
                fix='backward_options={"op_dtype": torch.float32, "out_dtype": torch.float32}',
                code=Code.PRECISION,
            )
        )
    return PLAIN if found == PLAIN else found


def in_place(axis: object, options: Options, inplace: bool) -> Options:
    """The options of a step whose result takes the place of its input, where `inplace` says so."""
    demand(f"axis {axis!r}", "inplace", inplace, FLAG)
    return replace(options, inplace=True) if inplace else options


def demand_writable(where: str, x: Tensor) -> None:
    """Errors: `SpmdTypeError` where no result can take the place of `x`: a leaf, or one value at many places."""
    base = x if x._base is None else x._base
    if base.is_leaf and base.requires_grad and torch.is_grad_enabled():
        raise SpmdTypeError(
            Problem(
                where=where,
                what="inplace=True of a leaf that requires a gradient, or of a view of one",
                why="its own value is what the gradient is of; the sum would take its place",
                fix="leave inplace out; or x.clone() first, or under torch.no_grad()",
                code=Code.WRITE,
            )
        )
    if any(length > 1 and stride == 0 for length, stride in zip(x.shape, x.stride(), strict=True)):
        raise SpmdTypeError(
            Problem(
                where=where,
                what=f"inplace=True of an expanded tensor {tuple(x.shape)}",
                why="several of its elements are one place in memory",
                fix="leave inplace out; or x.contiguous() first",
                code=Code.WRITE,
            )
        )


def demand_kind(where: str, options: Options, x: Tensor) -> None:
    """Errors: `SpmdTypeError` where a dtype that is said is of another kind than that of `x`: whole numbers, say."""
    for name in ("op_dtype", "out_dtype", "back_op_dtype", "back_out_dtype"):
        dtype = getattr(options, name)
        if dtype is not None and (dtype.is_floating_point, dtype.is_complex) != (x.is_floating_point(), x.is_complex()):
            raise SpmdTypeError(
                Problem(
                    where=where,
                    what=f"{name.replace('back_', '')}={dtype} of a tensor of {x.dtype}",
                    why="a collective may run in another precision, and not in numbers of another kind",
                    fix=f"x.to({dtype}) before the call, where x is no sum over ranks; or {name} of the kind of x",
                    code=Code.PRECISION,
                )
            )


def demand_back_dtype(step: Step, options: Options, x: Tensor) -> None:
    """Errors: `SpmdTypeError` where the gradient would be summed in low precision and nobody said so."""
    if options.back_op_dtype is not None or not (x.requires_grad and torch.is_grad_enabled()):
        return
    if step.backward.op not in (Op.ALL_REDUCE, Op.REDUCE_SCATTER):
        return
    low = [dtype for dtype in (options.op_dtype, options.out_dtype, x.dtype) if dtype is not None and _is_low(dtype)]
    if low:
        raise SpmdTypeError(
            Problem(
                where=step.where,
                what=f"{step} in {str(low[0]).removeprefix('torch.')}: nothing is said of the dtype in which backward, "
                f"which {_DOES[step.backward.op]}, sums the gradients",
                why="a sum over many ranks loses digits in low precision",
                fix='backward_options={"op_dtype": torch.float32}',
                code=Code.PRECISION,
            )
        )


_DOES: Final = {Op.ALL_REDUCE: "all-reduces", Op.REDUCE_SCATTER: "reduces and scatters"}


def _is_low(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize < 4
