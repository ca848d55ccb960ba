"""How far two tensors are from each other, over dims that are whole."""

from __future__ import annotations

from meshwright.check.algebra import Result, propagate
from meshwright.check.formula import aligned
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.term import Label, Labels, Term, opaque


def _between(op: str, x: Operand, y: Operand, dim: int, keepdim: bool = False) -> Result:
    """Along one dim of both."""
    count = max(len(x.shape), len(y.shape))
    at = dim % count
    kept = tuple(("one", each) if each == at else each for each in range(count) if keepdim or each != at)
    terms = (Term("x1", x, aligned(x, count)), Term("x2", y, aligned(y, count)))
    lengths: dict[Label, int] = {("one", at): 1}
    return propagate(op, terms, opaque(2), kept, along={at: ""}, lengths=lengths)


@pure("cosine_similarity")
def cosine_similarity(x1: Operand, x2: Operand, dim: int = 1, eps: float = 1e-8) -> Result:
    """Angles along a dim that is whole."""
    return _between("cosine_similarity", x1, x2, dim)


@pure("pairwise_distance")
def pairwise_distance(x1: Operand, x2: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Result:
    """Distances over the last dim, which is whole."""
    return _between("pairwise_distance", x1, x2, -1, keepdim)


@pure("cdist")
def cdist(x1: Operand, x2: Operand, p: float = 2.0, compute_mode: str = "") -> Result:
    """x1[..., n, features], x2[..., m, features] -> [..., n, m]; features are whole."""
    count = max(len(x1.shape), len(x2.shape)) - 2
    batch: Labels = tuple(range(count))
    first = (*batch[count - len(x1.shape) + 2 :], "n", "features")
    second = (*batch[count - len(x2.shape) + 2 :], "m", "features")
    terms = (Term("x1", x1, first), Term("x2", x2, second))
    return propagate("cdist", terms, opaque(2), (*batch, "n", "m"), along={"features": ""})


@pure("dist")
def dist(input: Operand, other: Operand, p: float = 2) -> Result:
    """Over all positions, which are whole."""
    count = max(len(input.shape), len(other.shape))
    terms = (Term("input", input, aligned(input, count)), Term("other", other, aligned(other, count)))
    along: dict[Label, str] = dict.fromkeys(range(count), "")
    return propagate("dist", terms, opaque(2), (), along=along)
