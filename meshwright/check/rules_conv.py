"""Convolutions: a contraction over channels, along places that are whole.

Batch and output channels may be sharded; over input channels that input and weight shard alike the result is P. Groups
are counted on this rank: channels may be sharded where the weight's are, so that each rank has all of its groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import along_shard
from meshwright.check.rule import pure
from meshwright.check.rules_window import laid, unlaid
from meshwright.check.term import Factor, Label, Labels, Term
from meshwright.types.kinds import Shard


@pure("conv1d", "conv2d", "conv3d")
def conv(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Result:
    """input[n, in, ...], weight[out, in / groups, ...], bias[out]; linear in input and weight."""
    made = laid(input.whole[2:], weight.whole[2:], stride, padding, dilation)
    return _convolved("conv", input, weight, bias, groups, made, transposed=False)


@pure("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Result:
    """input[n, in, ...], weight[in, out / groups, ...], bias[out]; linear in input and weight."""
    made = unlaid(input.whole[2:], weight.whole[2:], stride, padding, output_padding, dilation)
    return _convolved("conv_transpose", input, weight, bias, groups, made, transposed=True)


def _convolved(
    op: str, input: Operand, weight: Operand, bias: Operand | None, groups: int, made: Shape, *, transposed: bool
) -> Result:
    if len(input.shape) != len(weight.shape):
        raise TypeError("an input without a batch")
    spatial = len(weight.shape) - 2
    places: Labels = tuple(("place", dim) for dim in range(spatial))
    kernel: Labels = tuple(("kernel", dim) for dim in range(spatial))
    out: Labels = tuple(("out place", dim) for dim in range(spatial))
    channels: Labels = ("in", "out") if transposed else ("out", "in")
    along: dict[Label, str] = dict.fromkeys((*places, *kernel), "")
    lengths: dict[Label, int] = dict(zip(out, made, strict=True))
    source, result = ("in", "out") if groups == 1 else ("group", "group")
    if groups > 1:
        channels = ("group", "rest")
        along["rest"] = ""
        weight, bias, lengths["group"] = _grouped(op, input, weight, bias, groups, transposed)
    terms = [Term("input", input, ("n", source, *places)), Term("weight", weight, (*channels, *kernel))]
    value = [(Factor(0), Factor(1))]
    if bias is not None:
        terms.append(Term("bias", bias, (result,)))
        value.append((Factor(2),))  # type: ignore[arg-type]
    return propagate(op, terms, value, ("n", result, *out), along=along, lengths=lengths)


def _grouped(
    op: str, input: Operand, weight: Operand, bias: Operand | None, groups: int, transposed: bool
) -> tuple[Operand, Operand | None, int]:
    """Weight and bias as if they had a position for each input channel, and the number of output channels."""
    made = weight.whole[1] * groups * (input.whole[1] // input.shape[1]) if transposed else weight.whole[0]
    for name, given, dim in (("input", input, 1), ("weight", weight, 0), ("bias", bias, 0)):
        for axis in given.layout.sharding(dim) if given is not None else ():
            shard = given.layout[axis] if given is not None else None
            if isinstance(shard, Shard) and shard.sizes is not None:
                raise along_shard(axis, name, shard, op)
    count = input.whole[1]
    weight = replace(weight, whole=(count, *weight.whole[1:]))
    return weight, None if bias is None else replace(bias, whole=(count,)), made
