"""Attention: each query's weights over all keys, and what they pick of the values."""

from __future__ import annotations

from dataclasses import replace

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.refusal import along_shard
from meshwright.check.rule import pure
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
