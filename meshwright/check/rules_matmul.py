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


@pure("addmm", "baddbmm", "addmv")
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


@pure("outer", "ger")
def outer(input: Operand, vec2: Operand) -> Result:
    """[m], [n] -> [m, n]."""
    return propagate("outer", (Term("input", input, ("m",)), Term("vec2", vec2, ("n",))), _PRODUCT, ("m", "n"))


@pure("einsum")
def einsum(equation: str, *operands: Any) -> Result:
    """A product of all operands, summed over the letters that the result does not have."""
    flat: Sequence[Operand] = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple) else operands
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    groups = inputs.split(",")
    if "." in equation or len(groups) != len(flat):
        raise TypeError(f"the equation {equation!r}")
    letters = [letter for group in groups for letter in group]
    out = tuple(result) if arrow else tuple(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    terms = [
        Term(f"operand {n}", operand, tuple(group)) for n, (operand, group) in enumerate(zip(flat, groups, strict=True))
    ]
    return propagate("einsum", terms, (tuple(Factor(n) for n in range(len(terms))),), out)


@pure("scaled_dot_product_attention")
def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    attn_mask: Operand | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Result:
    """query[..., heads, L, e], key[..., heads, K, e], value[..., heads, K, d] -> [..., heads, L, d].

    Heads and batch may be sharded. Keys are needed whole, and features too; queries may be sharded where a mask and
    not their place on the rank says what they see.
    """
    if dropout_p:
        raise TypeError("dropout_p")
    batch = tuple(range(len(query.shape) - 2))
    terms = [
        Term("query", query, (*batch, "L", "e")),
        Term("key", key, (*batch, "K", "e")),
        Term("value", value, (*batch, "K", "d")),
    ]
    factors = [Factor(0, linear=False), Factor(1, linear=False), Factor(2)]
    if attn_mask is not None:
        shared = tuple((*batch, "L", "K")[-len(attn_mask.shape) :])
        terms.append(Term("attn_mask", attn_mask, shared))
        factors.append(Factor(3, linear=False))
    along: dict[Label, str] = {"K": "", "e": ""}
    if is_causal:
        along["L"] = "a mask made from the places of the queries in the whole, instead of is_causal"
    lengths: dict[Label, int] = {}
    if enable_gqa:  # each key head serves some query heads, which stand together
        lengths = {batch[-1]: query.whole[-3]}
        terms = [_regrouped(term, len(batch) - 1, query) for term in terms]
    return propagate("attention", terms, (factors,), (*batch, "L", "d"), along=along, lengths=lengths)


def _regrouped(term: Term, heads: int, query: Operand) -> Term:
    """The term as it would be with its heads repeated for the queries that share them."""
    operand = term.given
    assert isinstance(operand, Operand)
    if len(operand.whole) != len(query.whole) or operand.whole[heads] in (1, query.whole[heads]):
        return term
    whole = (*operand.whole[:heads], query.whole[heads], *operand.whole[heads + 1 :])
    return term._replace(given=Operand(operand.tag, operand.shape, whole, operand.flows, operand.dtype))


@pure("embedding")
def embedding(
    input: Operand,
    weight: Operand,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Result:
    """tokens[...] of weight[vocab, d] -> [..., d]; all rows are on every rank."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise TypeError("max_norm, scale_grad_by_freq or sparse")
    batch = tuple(range(len(input.shape)))
    terms = (Term("input", input, batch), Term("weight", weight, ("vocab", "d")))
    instead = "look up this rank's rows, masked_fill the others with 0 and claim the result: reinterpret V -> P"
    value = ((Factor(0, linear=False), Factor(1)),)
    return propagate("embedding", terms, value, (*batch, "d"), along={"vocab": instead})


def _matmul_labels(left: int, right: int) -> tuple[Labels, Labels, Labels]:
    batch = max(left, right) - 2
    batches = tuple(range(max(batch, 0)))
    m: Labels = ("m",) if left > 1 else ()
    n: Labels = ("n",) if right > 1 else ()
    mine = batches[len(batches) - max(left - 2, 0) :]
    theirs = batches[len(batches) - max(right - 2, 0) :]
    return (*mine, *m, "k"), (*theirs, "k", *n), (*batches, *m, *n)
