"""Attention with its projections, as `nn.MultiheadAttention` computes it in one call."""

from __future__ import annotations

from typing import Any

from meshwright.check.algebra import Result, propagate
from meshwright.check.operand import Operand
from meshwright.check.rule import pure
from meshwright.check.term import Factor, Label, Labels, Term


@pure("multi_head_attention_forward")
def multi_head_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Operand | None,
    in_proj_bias: Operand | None,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Operand,
    out_proj_bias: Operand | None,
    training: bool = True,
    key_padding_mask: Operand | None = None,
    need_weights: bool = True,
    attn_mask: Operand | None = None,
    use_separate_proj_weight: bool = False,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    q_proj_weight: Operand | None = None,
    k_proj_weight: Operand | None = None,
    v_proj_weight: Operand | None = None,
    **others: Any,
) -> tuple[Result | None, ...]:
    """query[L, N, E], key and value[S, N, E] -> [L, N, E], and the weights[N, L, S]; keys and features are whole."""
    own = {"q_proj_weight": q_proj_weight, "k_proj_weight": k_proj_weight, "v_proj_weight": v_proj_weight}
    projections = own if use_separate_proj_weight else {"in_proj_weight": in_proj_weight}
    given = [query, key, value, *projections.values()]
    if any(each is not None for each in (bias_k, bias_v, *others.values())):
        raise TypeError("a bias of keys")
    if (training and dropout_p) or not average_attn_weights or len(query.shape) != 3 or None in given:
        raise TypeError("dropout, weights of each head, or no batch")
    terms = [
        Term("query", query, ("L", "N", "E")),
        Term("key", key, ("S", "N", "E of keys")),
        Term("value", value, ("S", "N", "E of values")),
        *(Term(name, each, ((name, "out"), (name, "in"))) for name, each in projections.items() if each is not None),
    ]
    whole = [(name, end) for name in projections for end in ("out", "in")]
    shapes: tuple[tuple[str, Any, Labels], ...] = (
        ("in_proj_bias", in_proj_bias, ("3E",)),
        ("key_padding_mask", key_padding_mask, ("N", "S")),
        ("attn_mask", attn_mask, ("L", "S")),
    )
    if attn_mask is not None and len(attn_mask.shape) != 2:
        raise TypeError("a mask for each head")
    terms += [Term(name, x, labels) for name, x, labels in shapes if x is not None]
    inside = [Factor(n, linear=False) for n in range(len(terms))]
    along: dict[Label, str] = dict.fromkeys(("S", "E", "E of keys", "E of values", "3E", "heads", *whole), "")
    if is_causal:
        along["L"] = ""
    weights = propagate("multi_head_attention_forward", terms, (inside,), ("N", "L", "S"), along=along)
    terms.append(Term("out_proj_weight", out_proj_weight, ("out", "heads")))
    sums = [[*inside, Factor(len(terms) - 1)]]
    if out_proj_bias is not None:
        terms.append(Term("out_proj_bias", out_proj_bias, ("out",)))
        sums.append([Factor(len(terms) - 1)])
    result = propagate("multi_head_attention_forward", terms, sums, ("L", "N", "out"), along=along)
    return result, weights if need_weights else None
