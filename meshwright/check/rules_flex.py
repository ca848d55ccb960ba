"""`flex_attention`: as attention, and what its author's functions make of scores and places.

torch compiles inside; what it is about to compile is judged before, and run unjudged. The author's functions are told
places as a rank counts them: along a dim that is sharded these are V, so a function that asks for them is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import _pop_mode_temporarily

from meshwright.check.algebra import Result, agree
from meshwright.check.context import active
from meshwright.check.intercept import mode_is_on, place
from meshwright.check.mode import TypeCheck
from meshwright.check.operand import Operand, local_shape
from meshwright.check.refusal import Refused, no_rule
from meshwright.check.report import Trusted
from meshwright.check.rule import pure
from meshwright.check.rules_attention import attention
from meshwright.check.source import line
from meshwright.check.tag import CONSTANT, Tag, read, typed, write
from meshwright.codes import Code
from meshwright.types.kinds import I, R, V
from meshwright.types.layout import SpmdLayout

_MODULE: Final = "torch.nn.attention.flex_attention"
_PLACES: Final = ("batch", "head", "query", "key")


@pure("flex_attention")
def flex_attention(query: Operand, key: Operand, value: Operand) -> tuple[Result, Result]:
    """As `scaled_dot_product_attention`; score_mod and mask_mod may ask for places along dims that are whole.

    The output, and the scores [..., heads, L, K].
    """
    shared = query.whole[1] != key.whole[1]
    out = attention(query, key, value, enable_gqa=shared)
    scores = attention(query, key, key, enable_gqa=shared)
    assert scores.whole is not None
    factors = scores.tag.factors
    last = () if factors is None else ((*factors[:-1], (key.whole[-2],)),)
    return out, Result(typed(scores.tag.layout, scores.tag.counted, *last), (*scores.whole[:-1], key.whole[-2]))


@place(lambda: sys.modules.get(_MODULE), "_validate_sdpa_input")
def validated(original: Callable[..., Any], query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Before torch looks at the lengths on a rank the types are judged."""
    check = active()
    if check is not None and mode_is_on() and all(isinstance(x, Tensor) for x in (query, key, value)):
        check.run(_demand_fit, flex_attention, (query, key, value), {})
    return original(query, key, value, *args, **kwargs)


def _demand_fit(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    operands = [check.operand(x) for x in args]
    if any(each.known for each in operands):
        _fitting(*operands)


def _fitting(query: Operand, key: Operand, value: Operand) -> tuple[Result, Result]:
    try:
        return flex_attention(query, key, value)
    except (TypeError, IndexError) as error:
        raise no_rule(f"this form of flex_attention ({error})") from None


def is_flex(function: Any) -> bool:
    """Whether this is what `flex_attention` compiles."""
    name = getattr(function, "__qualname__", "")
    return getattr(function, "__module__", "") == _MODULE and name.endswith("_flex_attention_hop_wrapper")


def flex(compile_: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """What stands for the compiled function: it judges, then compiles and runs."""

    def call(*given: Any) -> Any:
        check = active()
        assert check is not None
        return check.run(_judged, _run(check, compile_, args, kwargs), given, {})

    return call


def _run(
    check: TypeCheck, compile_: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        with _unjudged(check):
            return compile_(*args, **kwargs)(*given)

    run.__name__ = "flex_attention"
    return run


@contextmanager
def _unjudged(check: TypeCheck) -> Iterator[None]:
    """What runs in the block was judged, and is nobody's claim."""
    with _pop_mode_temporarily():
        check.paused = True
        try:
            yield
        finally:
            check.paused = False


def _judged(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    query, key, value, score_mod, blocks, *_ = args
    q, k, v = operands = tuple(check.operand(x) for x in (query, key, value))
    check.note_call("flex_attention", (query, key, value))
    if not any(each.known for each in operands):
        return check.note_plain(func(*args), operands)
    out, scores = _fitting(q, k, v)
    assert scores.whole is not None
    shape = local_shape(scores.whole, scores.tag, check.mesh)
    places = _places(q, shape, query.device)
    _demand_scores(check, score_mod, scores.tag, shape, places, query)
    _demand_mask(check, blocks, places, scores.tag.layout.sharded)
    result, sums, highest = func(*args)
    write(result, out.tag)
    factors = scores.tag.factors
    rows = typed(scores.tag.layout, scores.tag.counted, None if factors is None else factors[:-1])
    for x in (sums, highest):
        if x.shape == shape[:-1]:
            write(x, rows)
    return result, sums, highest


def _places(q: Operand, shape: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """The places of each dim of the scores as this rank counts them, to be spread over the others."""
    found = []
    for dim, length in enumerate(shape):
        with torch._C.DisableTorchFunction():
            x = torch.arange(length, device=device).view([-1 if each == dim else 1 for each in range(4)])
        axes = q.layout.sharding(dim) if dim < 3 else ()
        alike = dict.fromkeys((axis for axis in q.layout if axis not in axes), R)
        write(x, typed(SpmdLayout({**dict.fromkeys(axes, V), **alike})))
        found.append(x)
    return found


def _demand_scores(
    check: TypeCheck, score_mod: Any, tag: Tag, shape: tuple[int, ...], places: list[Tensor], query: Tensor
) -> None:
    if score_mod is getattr(sys.modules[_MODULE], "_identity", None):
        return
    with torch._C.DisableTorchFunction():
        score = torch.zeros(shape, dtype=query.dtype, device=query.device)
    write(score, tag)
    if query.requires_grad and torch.is_grad_enabled():
        with torch._C.DisableTorchFunction():
            score.requires_grad_()
    changed = read(_followed("score_mod", score_mod, score, *places))
    _demand_unplaced("score_mod", changed, tag.layout.sharded)
    if changed is CONSTANT:
        return
    for axis, kind in tag.layout.items():
        found = changed.layout.get(axis)
        if found is None or not agree(kind, found, flows=False):
            raise _refused(
                f"on axis {axis!r} score_mod makes {found!r} of scores that are {kind!r}",
                "the weights of a query are made of its own scores",
            )


def _demand_mask(check: TypeCheck, blocks: tuple[Any, ...], places: list[Tensor], sharded: Sequence[str]) -> None:
    mask_mod = blocks[-1]
    seen = read(_followed("mask_mod", mask_mod, *places))
    _demand_unplaced("mask_mod", seen, sharded)
    for axis, kind in seen.layout.items():
        if kind not in (R, I):
            raise _refused(
                f"on axis {axis!r} what mask_mod says is {kind!r}",
                "which keys a query sees is said of each place of the whole scores",
            )
    if any(x is not None and x.is_meta for x in blocks[2:10]):
        check.report.trust(check.report.claims, Trusted(line(), "the blocks of a BlockMask are those of its mask_mod"))
        return
    with _unjudged(check):
        alike = _are_blocks_of(mask_mod, blocks, places[0].device)
    if not alike:
        raise _refused(
            "the blocks of the BlockMask are not those of its mask_mod",
            "which keys a query sees is known of mask_mod alone",
        )


def _are_blocks_of(mask_mod: Any, blocks: tuple[Any, ...], device: torch.device) -> bool:
    """Whether the blocks that are looked into are those that `create_block_mask` makes of the function."""
    flex = sys.modules[_MODULE]
    rows, columns, number, index, whole_number, whole_index, *_ = blocks
    size = blocks[-3:-1]
    if size[0] == flex._LARGE_SPARSE_BLOCK_SIZE and mask_mod is flex.noop_mask:
        return number.numel() == index.numel() == 1 and int(number) == 1 and int(index) == 0 and whole_number is None
    batch, heads = number.shape[:2]
    for apart in (True, False):
        made = flex.create_block_mask(
            mask_mod, batch, heads, rows, columns, device, BLOCK_SIZE=size, separate_full_blocks=apart
        )
        ours = (made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices)
        if all(map(_equal, ours, (number, index, whole_number, whole_index))):
            return True
    return False


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _followed(name: str, mod: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """What the author's function returns for all places together, judged call by call."""
    try:
        return mod(*args)
    except Refused:
        raise
    except (TypeError, RuntimeError, IndexError, ValueError, AttributeError) as error:
        raise no_rule(f"flex_attention with this {name} ({type(error).__name__}: {error})") from None


def _demand_unplaced(name: str, tag: Tag, axes: Sequence[str]) -> None:
    for axis in axes:
        if tag.layout.get(axis) is V:
            raise _refused(
                f"on axis {axis!r}, over which batch, heads or queries are sharded, what {name} says is V: it asks for "
                "their places, or looks into a tensor that is V",
                "a rank counts its own places from 0, and one device counts those of all ranks",
            )


def _refused(what: str, why: str) -> Refused:
    refused = Refused(
        what,
        why,
        "scaled_dot_product_attention with a mask that is a tensor of its own type; or all_gather what is sharded",
        code=Code.ALONG_SHARD,
    )
    refused.call = "flex_attention"
    return refused
