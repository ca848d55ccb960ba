"""Contractions: products summed over the dims that two operands share and the result does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.formula import aligned
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.term import Factor, Label, Labels, Sum, Term

_PRODUCT: Sum = ((Factor(0), Factor(1)),)


@pure("matmul", "mm", "bmm", "mv", "dot")
def matmul(input: Operand, other: Operand) -> Result:
    """[..., m, k] @ [..., k, n] -> [..., m, n]; a vector lacks m or n."""
    left, right, out = _matmul_labels(len(input.shape), len(other.shape))
    return propagate("matmul", (Term("input", input, left), Term("other", other, right)), _PRODUCT, out)


@pure("rmatmul")
def rmatmul(input: Operand, other: Operand) -> Result:
    """other @ input."""
    left, right, out = _matmul_labels(len(other.shape), len(input.shape))
    return propagate("matmul", (Term("input", input, right), Term("other", other, left)), _PRODUCT, out)


@pure("linear")
def linear(input: Operand, weight: Operand, bias: Operand | None = None) -> Result:
    """[..., k] with [n, k] and [n] -> [..., n]; without n where weight is [k]."""
    n: Labels = ("n",) if len(weight.shape) == 2 else ()
    batch = tuple(range(len(input.shape) - 1))
    terms = [Term("input", input, (*batch, "k")), Term("weight", weight, (*n, "k"))]
    value = [*_PRODUCT]
    if bias is not None:
        terms.append(Term("bias", bias, n))
        value.append((Factor(2),))
    return propagate("linear", terms, value, (*batch, *n))


@pure("addmm")
def addmm(input: Operand, mat1: Operand, mat2: Operand, *, beta: Any = 1, alpha: Any = 1) -> Result:
    """beta * input + alpha * (mat1 @ mat2)."""
    left, right, out = _matmul_labels(len(mat1.shape), len(mat2.shape))
    shared = tuple(out[place] for place in aligned(input, len(out)) if isinstance(place, int))
    terms = (
        Term("input", input, shared),
        Term("mat1", mat1, left),
        Term("mat2", mat2, right),
        Term("beta", beta),
        Term("alpha", alpha),
    )
    return propagate("addmm", terms, ((Factor(0), Factor(3)), (Factor(1), Factor(2), Factor(4))), out)


@pure("baddbmm")
def baddbmm(input: Operand, batch1: Operand, batch2: Operand, *, beta: Any = 1, alpha: Any = 1) -> Result:
    """As `addmm`, of each matrix of a batch."""
    return addmm(input, batch1, batch2, beta=beta, alpha=alpha)


@pure("addmv")
def addmv(input: Operand, mat: Operand, vec: Operand, *, beta: Any = 1, alpha: Any = 1) -> Result:
    """beta * input + alpha * (mat @ vec)."""
    return addmm(input, mat, vec, beta=beta, alpha=alpha)


@pure("outer", "ger")
def outer(input: Operand, vec2: Operand) -> Result:
    """[m], [n] -> [m, n]."""
    return propagate("outer", (Term("input", input, ("m",)), Term("vec2", vec2, ("n",))), _PRODUCT, ("m", "n"))


@pure("vdot")
def vdot(input: Operand, other: Operand) -> Result:
    """[k], [k] -> one number."""
    return propagate("vdot", (Term("input", input, ("k",)), Term("other", other, ("k",))), _PRODUCT, ())


@pure("inner")
def inner(input: Operand, other: Operand) -> Result:
    """[..., k], [..., k] -> the dims of both, without k."""
    if not input.shape or not other.shape:
        raise TypeError("a scalar")
    left = tuple(("left", dim) for dim in range(len(input.shape) - 1))
    right = tuple(("right", dim) for dim in range(len(other.shape) - 1))
    terms = (Term("input", input, (*left, "k")), Term("other", other, (*right, "k")))
    return propagate("inner", terms, _PRODUCT, (*left, *right))


@pure("bilinear")
def bilinear(input1: Operand, input2: Operand, weight: Operand, bias: Operand | None = None) -> Result:
    """[..., i] with [..., j], [n, i, j] and [n] -> [..., n]."""
    batch = tuple(range(len(input1.shape) - 1))
    terms = [
        Term("input1", input1, (*batch, "i")),
        Term("input2", input2, (*batch, "j")),
        Term("weight", weight, ("n", "i", "j")),
    ]
    value = [(Factor(0), Factor(1), Factor(2))]
    if bias is not None:
        terms.append(Term("bias", bias, ("n",)))
        value.append((Factor(3),))  # type: ignore[arg-type]
    return propagate("bilinear", terms, value, (*batch, "n"))


@pure("addr")
def addr(input: Operand, vec1: Operand, vec2: Operand, *, beta: Any = 1, alpha: Any = 1) -> Result:
    """beta * input + alpha * outer(vec1, vec2)."""
    out: Labels = ("m", "n")
    terms = (
        Term("input", input, out[len(out) - len(input.shape) :]),
        Term("vec1", vec1, ("m",)),
        Term("vec2", vec2, ("n",)),
        Term("beta", beta),
        Term("alpha", alpha),
    )
    return propagate("addr", terms, ((Factor(0), Factor(3)), (Factor(1), Factor(2), Factor(4))), out)


@pure("addbmm")
def addbmm(input: Operand, batch1: Operand, batch2: Operand, *, beta: Any = 1, alpha: Any = 1) -> Result:
    """beta * input + alpha * (batch1 @ batch2), summed over the batch."""
    out: Labels = ("m", "n")
    terms = (
        Term("input", input, out[len(out) - len(input.shape) :]),
        Term("batch1", batch1, ("batch", "m", "k")),
        Term("batch2", batch2, ("batch", "k", "n")),
        Term("beta", beta),
        Term("alpha", alpha),
    )
    return propagate("addbmm", terms, ((Factor(0), Factor(3)), (Factor(1), Factor(2), Factor(4))), out)


@pure("kron")
def kron(input: Operand, other: Operand) -> Result:
    """Every position of the input times all of the other, which is whole."""
    if len(input.shape) != len(other.shape):
        raise TypeError("tensors of different numbers of dims")
    labels = tuple(range(len(input.shape)))
    inner_labels = tuple(("inner", dim) for dim in labels)
    along: dict[Label, str] = dict.fromkeys(inner_labels, "")
    lengths: dict[Label, int] = {dim: input.whole[dim] * other.whole[dim] for dim in labels}
    terms = (Term("input", input, labels), Term("other", other, inner_labels))
    return propagate("kron", terms, _PRODUCT, labels, along=along, lengths=lengths)


@pure("tensordot")
def tensordot(a: Operand, b: Operand, dims: Any = 2, out: None = None) -> Result:
    """A sum over the last dims of one and the first of the other, or over pairs of dims."""
    if isinstance(dims, int):
        mine, theirs = tuple(range(len(a.shape) - dims, len(a.shape))), tuple(range(dims))
    else:
        mine, theirs = (tuple(each) for each in dims)
    left: list[Label] = [("left", dim) for dim in range(len(a.shape))]
    right: list[Label] = [("right", dim) for dim in range(len(b.shape))]
    for n, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        left[one] = right[other] = ("shared", n)
    kept = [label for label in (*left, *right) if label not in [("shared", n) for n in range(len(mine))]]
    return propagate("tensordot", (Term("a", a, tuple(left)), Term("b", b, tuple(right))), _PRODUCT, tuple(kept))


@pure("chain_matmul")
def chain_matmul(*matrices: Operand) -> Result:
    """A product of matrices."""
    return multi_dot(matrices)


@pure("multi_dot")
def multi_dot(tensors: tuple[Operand, ...]) -> Result:
    """A product of matrices; the first and the last may be vectors."""
    last = len(tensors)
    labels: list[Labels] = [(n, n + 1) for n in range(last)]
    if len(tensors[0].shape) == 1:
        labels[0] = (1,)
    if len(tensors[-1].shape) == 1:
        labels[-1] = (last - 1,)
    terms = [Term(f"tensors[{n}]", one, mine) for n, (one, mine) in enumerate(zip(tensors, labels, strict=True))]
    out = tuple(end for end, tensor in ((0, tensors[0]), (last, tensors[-1])) if len(tensor.shape) == 2)
    return propagate("multi_dot", terms, (tuple(Factor(n) for n in range(last)),), out)


@pure("cross", "linalg_cross")
def cross(input: Operand, other: Operand, dim: int | None = -1) -> Result:
    """Along a dim of three positions, which is whole; linear in both."""
    count = max(len(input.shape), len(other.shape))
    if dim is None:
        raise TypeError("without dim")
    labels = tuple(range(count))
    terms = (Term("input", input, aligned(input, count)), Term("other", other, aligned(other, count)))
    return propagate("cross", terms, _PRODUCT, labels, along={dim % count: ""})


@pure("einsum")
def einsum(equation: str, *operands: Any) -> Result:
    """A product of all operands, summed over the letters that the result does not have."""
    if not isinstance(equation, str):
        raise TypeError("lists of dims in place of an equation")
    flat: Sequence[Operand] = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else operands
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    groups = inputs.split(",")
    if len(groups) != len(flat):
        raise TypeError(f"the equation {equation!r} for {len(flat)} tensors")
    labels = [_letters(group, len(operand.shape)) for group, operand in zip(groups, flat, strict=True)]
    every = [label for each in labels for label in each]
    dots = sorted({label for label in every if isinstance(label, int)})
    if arrow:
        out = [each for letter in result.replace("...", ".") for each in (dots if letter == "." else [letter])]
    else:
        out = [*dots, *sorted(letter for letter in set(every) if isinstance(letter, str) and every.count(letter) == 1)]
    repeated = [label for each in labels for label in each if each.count(label) > 1]
    terms = [Term(f"operands[{n}]", operand, mine) for n, (operand, mine) in enumerate(zip(flat, labels, strict=True))]
    value = (tuple(Factor(n) for n in range(len(terms))),)
    return propagate("einsum", terms, value, tuple(out), along=dict.fromkeys(repeated, ""))


def _letters(group: str, count: int) -> Labels:
    """The labels of an operand of `count` dims; those that dots stand for are -1, -2, ... from the last one on."""
    named = group.replace("...", ".")
    spread = count - len(named.replace(".", ""))
    if spread < 0 or (spread and "." not in named):
        raise TypeError(f"{group!r} for a tensor of {count} dims")
    return tuple(each for letter in named for each in (range(-spread, 0) if letter == "." else [letter]))


def _matmul_labels(left: int, right: int) -> tuple[Labels, Labels, Labels]:
    batch = max(left, right) - 2
    batches = tuple(range(max(batch, 0)))
    m: Labels = ("m",) if left > 1 else ()
    n: Labels = ("n",) if right > 1 else ()
    mine = batches[len(batches) - max(left - 2, 0) :]
    theirs = batches[len(batches) - max(right - 2, 0) :]
    return (*mine, *m, "k"), (*theirs, "k", *n), (*batches, *m, *n)
