"""Norms: statistics over dims that are whole, then a scale and a shift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.check.algebra import Result, demand_kept, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.term import Factor, Label, Labels, Term, opaque


def scaled(
    op: str, input: Operand, needed: Iterable[int], weight: Any, bias: Any, theirs: Labels, *stats: tuple[str, Operand]
) -> Result:
    """(input, in which it is not linear) * weight + bias. needed: dims that are whole; theirs: labels of the others."""
    labels = tuple(range(len(input.shape)))
    terms = [Term("input", input, labels), *(Term(name, given, theirs) for name, given in stats)]
    first = [Factor(n, linear=False) for n in range(len(terms))]
    value = [first]
    if weight is not None:
        terms.append(Term("weight", weight, theirs))
        first.append(Factor(len(terms) - 1))
    if bias is not None:
        terms.append(Term("bias", bias, theirs))
        value.append([Factor(len(terms) - 1)])
    along: dict[Label, str] = dict.fromkeys(needed, "")
    return propagate(op, terms, value, labels, along=along)


@pure("layer_norm")
def layer_norm(
    input: Operand,
    normalized_shape: Sequence[int],
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Result:
    """Over the last dims, which are whole; scaled by a weight of their shape, and shifted."""
    last = tuple(range(len(input.shape)))[-len(normalized_shape) :]
    return scaled("layer_norm", input, last, weight, bias, last)


@pure("native_layer_norm")
def native_layer_norm(
    input: Operand, normalized_shape: Sequence[int], weight: Operand | None, bias: Operand | None, eps: float
) -> tuple[Result, ...]:
    """As `layer_norm`; also the mean and the inverse deviation, in dims of one position."""
    labels = tuple(range(len(input.shape)))
    last = labels[len(labels) - len(normalized_shape) :]
    out = tuple(("one", dim) if dim in last else dim for dim in labels)
    lengths: dict[Label, int] = {("one", dim): 1 for dim in last}
    along: dict[Label, str] = dict.fromkeys(last, "")
    term = Term("input", input, labels)
    one = propagate("native_layer_norm", (term,), opaque(), out, along=along, lengths=lengths, flows=False)
    return layer_norm(input, normalized_shape, weight, bias, eps), one, one


@pure("_weight_norm")
def weight_norm(v: Operand, g: Operand, dim: int = 0) -> Result:
    """Directions `v`, which are whole for each place of `dim`, with the lengths `g`, in which it is linear."""
    labels = tuple(range(len(v.shape)))
    along: dict[Label, str] = dict.fromkeys((n for n in labels if dim == -1 or n != dim % len(labels)), "")
    theirs = labels[len(labels) - len(g.shape) :]
    value = ((Factor(0, linear=False), Factor(1)),)
    return propagate("_weight_norm", (Term("v", v, labels), Term("g", g, theirs)), value, labels, along=along)


@pure("rms_norm")
def rms_norm(
    input: Operand, normalized_shape: Sequence[int], weight: Operand | None = None, eps: float | None = None
) -> Result:
    """Over the last dims, which are whole; scaled by a weight of their shape."""
    last = tuple(range(len(input.shape)))[-len(normalized_shape) :]
    return scaled("rms_norm", input, last, weight, None, last)


@pure("group_norm")
def group_norm(
    input: Operand,
    num_groups: int,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Result:
    """input[N, C, ...]: all but the batch is whole, since groups of channels are counted over all ranks."""
    return scaled("group_norm", input, range(1, len(input.shape)), weight, bias, (1,))


@pure("instance_norm")
def instance_norm(
    input: Operand,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Operand | None = None,
    bias: Operand | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Result:
    """input[N, C, ...]: places are whole."""
    if running_mean is not None or not use_input_stats:
        raise TypeError("running statistics")
    return scaled("instance_norm", input, range(2, len(input.shape)), weight, bias, (1,))


@pure("batch_norm")
def batch_norm(
    input: Operand,
    running_mean: Operand | None = None,
    running_var: Operand | None = None,
    weight: Operand | None = None,
    bias: Operand | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Result:
    """input[N, C, ...]: in training batch and places are whole; by running statistics all dims may be sharded."""
    running = [(f"running_{n}", given) for n, given in (("mean", running_mean), ("var", running_var)) if given]
    if not training:
        return scaled("batch_norm", input, (), weight, bias, (1,), *running)
    needed = [dim for dim in range(len(input.shape)) if dim != 1]
    for name, given in running:
        along: dict[Label, str] = dict.fromkeys(needed, "")
        terms = (Term("input", input, tuple(range(len(input.shape)))), Term(name, given, (1,)))
        value = ((Factor(0, linear=False), Factor(1, linear=False)),)
        demand_kept("batch_norm", given, propagate("batch_norm", terms, value, (1,), along=along, flows=False))
    return scaled("batch_norm", input, needed, weight, bias, (1,), *running)


@pure("local_response_norm")
def local_response_norm(input: Operand, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Result:
    """Over neighbouring channels, which are whole."""
    return scaled("local_response_norm", input, (1,), None, None, ())
