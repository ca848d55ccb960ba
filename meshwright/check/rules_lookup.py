"""Looking up: rows of a table, bins of a scale, members of a set."""

from __future__ import annotations

from typing import Any, Final

from meshwright.check import rules_pointwise  # noqa: F401  of the other form of `where`
from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused
from meshwright.check.rule import INFER, pure
from meshwright.check.term import Factor, Label, Term, opaque
from meshwright.codes import Code

_ROWS = "look up this rank's rows, masked_fill the others with 0 and claim the result: reinterpret V -> P"


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
    """tokens[...] of weight[vocab, d] -> [..., d]; all rows are on every rank; linear in the weight."""
    if max_norm or scale_grad_by_freq or sparse:
        raise TypeError("max_norm, scale_grad_by_freq or sparse")
    if input.dtype.is_floating_point:  # as torch.embedding has them
        input, weight = weight, input
    batch = tuple(range(len(input.shape)))
    terms = (Term("input", input, batch), Term("weight", weight, ("vocab", "d")))
    value = ((Factor(0, linear=False), Factor(1)),)
    return propagate("embedding", terms, value, (*batch, "d"), along={"vocab": _ROWS})


@pure("embedding_bag")
def embedding_bag(
    input: Operand,
    weight: Operand,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Operand | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Result:
    """tokens[bags, n] of weight[vocab, d] -> [bags, d]; rows are whole, and so are bags unless they are summed."""
    if offsets is not None or max_norm is not None or scale_grad_by_freq or sparse or len(input.shape) != 2:
        raise TypeError("offsets, max_norm, scale_grad_by_freq or sparse")
    terms = [Term("input", input, ("bags", "n")), Term("weight", weight, ("vocab", "d"))]
    factors = [Factor(0, linear=False), Factor(1, linear=mode != "max")]
    if per_sample_weights is not None:
        terms.append(Term("per_sample_weights", per_sample_weights, ("bags", "n")))
        factors.append(Factor(2))
    along: dict[Label, str] = {"vocab": _ROWS}
    if mode != "sum":
        along["n"] = ""
    return propagate("embedding_bag", terms, (factors,), ("bags", "d"), along=along)


@pure("one_hot")
def one_hot(input: Operand, num_classes: int = -1) -> Result:
    """numbers[...] -> [..., classes]; how many classes there are is said."""
    if num_classes < 0:
        raise TypeError("num_classes=-1: how many there are depends on values")
    labels = tuple(range(len(input.shape)))
    lengths: dict[Label, int] = {"classes": num_classes}
    return propagate(
        "one_hot", (Term("input", input, labels),), opaque(), (*labels, "classes"), lengths=lengths, flows=False
    )


@pure("bincount")
def bincount(input: Operand, weights: Operand | None = None, minlength: int = 0) -> Result:
    """How often each number occurs: over numbers that are sharded these counts add up, in as many bins as are said."""
    terms = [Term("input", input, ("n",))]
    factors = [Factor(0, linear=False)]
    if weights is not None:
        terms.append(Term("weights", weights, ("n",)))
        factors.append(Factor(1))
    found = propagate("bincount", terms, (factors,), ("bins",), lengths={"bins": minlength}, flows=False)
    for axis in input.layout.sharding(0):
        if minlength == 0:
            raise Refused(
                f"on axis {axis!r} input is {input.layout[axis]!r}, and how many bins a rank makes of its part depends "
                "on its values",
                "counts of the same bins add up",
                "bincount(input, minlength=n), with n above every number",
                code=Code.SHAPE,
                cut=axis,
            )
    return found if input.layout.sharded else Result(found.tag, None)


@pure("nonzero", "argwhere")
def nonzero(input: Operand, *, as_tuple: bool = False) -> Result | tuple[Result, ...]:
    """The places that are not zero, of dims that are whole; how many depends on values."""
    labels = tuple(range(len(input.shape)))
    out = ("found",) if as_tuple else ("found", "dims")
    lengths: dict[Label, int] = {"found": 0, "dims": len(labels)}
    along: dict[Label, str] = dict.fromkeys(labels, "")
    term = Term("input", input, labels)
    one = propagate("nonzero", (term,), opaque(), out, along=along, lengths=lengths, flows=False)
    found = Result(one.tag, None)
    return (found,) * max(len(labels), 1) if as_tuple else found


_EITHER: Final = INFER["where"]


@pure("where")
def where(*args: Any, **kwargs: Any) -> Any:
    """One value or the other; of a condition alone the places where it holds, as `nonzero(as_tuple=True)`."""
    return nonzero(args[0], as_tuple=True) if len(args) == 1 and not kwargs else _EITHER(*args, **kwargs)


@pure("bucketize")
def bucketize(input: Operand, boundaries: Operand, *, out_int32: bool = False, right: bool = False) -> Result:
    """How many boundaries lie before each position: over boundaries that are sharded these numbers add up."""
    if not isinstance(input, Operand):
        raise TypeError("a number")
    labels = tuple(range(len(input.shape)))
    terms = (Term("input", input, labels), Term("boundaries", boundaries, ("bins",)))
    return propagate("bucketize", terms, opaque(2), labels, flows=False)


@pure("searchsorted")
def searchsorted(
    sorted_sequence: Operand,
    input: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Result:
    """How much of a sequence lies before each value: over a sequence that is sharded these numbers add up."""
    if sorter is not None or not isinstance(input, Operand):
        raise TypeError("sorter, or a number")
    labels = tuple(range(len(input.shape)))
    rows = labels[:-1] if len(sorted_sequence.shape) > 1 else ()
    terms = (Term("sorted_sequence", sorted_sequence, (*rows, "sorted")), Term("input", input, labels))
    return propagate("searchsorted", terms, opaque(2), labels, flows=False)


@pure("isin")
def isin(elements: Operand, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False) -> Result:
    """Whether each position is in a set, which is whole."""
    if not isinstance(elements, Operand) or not isinstance(test_elements, Operand):
        raise TypeError("a number")
    labels = tuple(range(len(elements.shape)))
    members = tuple(("member", dim) for dim in range(len(test_elements.shape)))
    terms = (Term("elements", elements, labels), Term("test_elements", test_elements, members))
    along: dict[Label, str] = dict.fromkeys(members, "")
    return propagate("isin", terms, opaque(2), labels, along=along, flows=False)
