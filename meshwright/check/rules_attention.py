"""Attention: each query's weights over all keys, and what they pick of the values."""

from __future__ import annotations

from dataclasses import replace

from meshwright.check.algebra import Result, propagate
from meshwright.check.align import regrouped as joined
from meshwright.check.factors import assembled, factored, refactored, unsharded
from meshwright.check.operand import Operand, on_dims
from meshwright.check.refusal import along_shard
from meshwright.check.rule import pure
from meshwright.check.tag import typed
from meshwright.check.term import Factor, Label, Labels, Term, opaque
from meshwright.types.kinds import Shard


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
    if batch and _grouped_over_ranks(query, key, value):
        return _by_group(query, key, value, attn_mask, is_causal)
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
    along = _needed(is_causal)
    lengths: dict[Label, int] = {}
    if enable_gqa:  # each key head serves some query heads, which stand together
        lengths = {batch[-1]: query.whole[-3]}
        terms = [_regrouped(term, len(batch) - 1, query) for term in terms]
    return propagate("attention", terms, (factors,), (*batch, "L", "d"), along=along, lengths=lengths)


def _needed(is_causal: bool) -> dict[Label, str]:
    """The labels that are whole on a rank, with what to write where they are not."""
    along: dict[Label, str] = {"K": "", "e": ""}
    if is_causal:
        along["L"] = "a mask made from the places of the queries in the whole, instead of is_causal"
    return along


def _grouped_over_ranks(query: Operand, key: Operand, value: Operand) -> bool:
    """Whether a rank has one key head, and some of the queries that share it: the rest of them are on other ranks."""
    if len(key.shape) != len(query.shape) or key.shape[-3] != 1 or key.whole[-3] != value.whole[-3]:
        return False
    heads = len(query.shape) - 3
    apart = set(query.layout.sharding(heads)) - set(key.layout.sharding(heads))
    return bool(apart) and key.whole[-3] not in (1, query.whole[-3]) and query.whole[-3] % key.whole[-3] == 0


def _by_group(query: Operand, key: Operand, value: Operand, attn_mask: Operand | None, is_causal: bool) -> Result:
    """Query heads [groups, heads of a group], of which keys and values have the groups alone."""
    heads = len(query.shape) - 3
    batch, groups = tuple(range(heads)), key.whole[-3]
    terms = [
        Term("query", _in_groups("query", query, heads, groups), (*batch, "group", "head", "L", "e")),
        Term("key", key, (*batch, "group", "K", "e")),
        Term("value", value, (*batch, "group", "K", "d")),
    ]
    factors = [Factor(0, linear=False), Factor(1, linear=False), Factor(2)]
    if attn_mask is not None:
        if len(attn_mask.shape) > 2 and attn_mask.whole[-3] != 1:
            raise TypeError("a mask for each head, where the heads that share keys are on several ranks")
        terms.append(Term("attn_mask", attn_mask, (*batch, "group", "L", "K")[-len(attn_mask.shape) :]))
        factors.append(Factor(3, linear=False))
    out = (*batch, "group", "head", "L", "d")
    found = propagate("attention", terms, (factors,), out, along=_needed(is_causal))
    return Result(*joined(found.tag, found.whole, [*(1 for _ in batch), 2, 1, 1]))


def _in_groups(name: str, x: Operand, heads: int, groups: int) -> Operand:
    """The operand with its heads as two dims."""
    dims = factored(x.factors, x.tag.layout, x.degree, x.shape)
    split = refactored(dims[heads], [groups, x.whole[heads] // groups], x.degree, name)
    apart = [*dims[:heads], *([factor] for factor in split), *dims[heads + 1 :]]
    layout, factors = assembled(apart, unsharded(x.tag.layout))
    shape = (*x.shape[:heads], *(factor.local for factor in split), *x.shape[heads + 1 :])
    whole = (*x.whole[:heads], *(factor.length for factor in split), *x.whole[heads + 1 :])
    tag = typed(layout, x.tag.counted, factors)
    shown = layout if factors is None else on_dims(layout, factors)
    return Operand(tag, shape, whole, x.flows, x.dtype, shown, x.degree)


def _regrouped(term: Term, heads: int, query: Operand) -> Term:
    """The term as it would be with its heads repeated for the queries that share them."""
    operand = term.given
    assert isinstance(operand, Operand)
    if len(operand.whole) != len(query.whole) or operand.whole[heads] in (1, query.whole[heads]):
        return term
    whole = (*operand.whole[:heads], query.whole[heads], *operand.whole[heads + 1 :])
    return term._replace(given=replace(operand, whole=whole))


@pure("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Operand | None = None,
    scale: float | None = None,
) -> tuple[Result, ...]:
    """As `scaled_dot_product_attention`; and the logarithm of each query's sum over all keys, without a gradient."""
    for axis in value.layout.sharding(len(value.shape) - 1):
        shard = value.layout[axis]
        assert isinstance(shard, Shard)
        raise along_shard(axis, "value", shard, "flash attention, which wants values as long as keys,")
    out = attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    sums = _weights("flash attention", query, key, attn_mask, is_causal, ("L",), flows=False)
    return out, sums


@pure("_scaled_dot_product_attention_math")
def math_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    attn_mask: Operand | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Operand | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Result, ...]:
    """As `scaled_dot_product_attention`; and the weights [..., heads, L, K]."""
    if dropout_mask is not None or enable_gqa:
        raise TypeError("dropout_mask or enable_gqa")
    out = attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return out, _weights("attention", query, key, attn_mask, is_causal, ("L", "K"))


def _weights(
    op: str, query: Operand, key: Operand, mask: Operand | None, causal: bool, last: Labels, flows: bool = True
) -> Result:
    """What depends on queries and keys alone."""
    batch = tuple(range(len(query.shape) - 2))
    terms = [Term("query", query, (*batch, "L", "e")), Term("key", key, (*batch, "K", "e"))]
    if mask is not None:
        terms.append(Term("attn_mask", mask, tuple((*batch, "L", "K")[-len(mask.shape) :])))
    along: dict[Label, str] = {"K": "", "e": "", **({"L": ""} if causal else {})}
    return propagate(op, terms, opaque(len(terms)), (*batch, *last), along=along, flows=flows)
