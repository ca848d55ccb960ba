"""Attributes and methods that say something of a tensor, or hand out the same tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meshwright.check.algebra import Result, agree
from meshwright.check.aliases import named_alike
from meshwright.check.formula import Formula
from meshwright.check.memory import overwritten
from meshwright.check.operand import Operand
from meshwright.check.own_lengths import OWN
from meshwright.check.refusal import Refused
from meshwright.check.rule import Handler, Pure, forms, getter, setter, special
from meshwright.check.rules_pointwise import FORMULAS
from meshwright.check.rules_view import permute
from meshwright.check.tag import Tag, read, share, write, written
from meshwright.codes import Code
from meshwright.comm.followed import whole
from meshwright.comm.number import Origin, Source
from meshwright.comm.scope import find, no_dim, size
from meshwright.types.argument import is_whole
from meshwright.types.kinds import V

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_SAYING: Final = (
    "dim ndimension stride storage_offset element_size is_contiguous is_floating_point is_complex "
    "is_signed is_pinned is_same_size data_ptr untyped_storage get_device requires_grad_ retain_grad "
    "__repr__ __hash__ _is_view is_tensor is_storage result_type can_cast "
    "share_memory_ is_shared is_conj is_neg is_inference has_names pin_memory record_stream _set_grad_enabled "
    "__reduce_ex__ _has_compatible_shallow_copy_type"
)


def _passed(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Nothing of a value is read, and no tensor is made."""
    return func(*args, **kwargs)


special(*(function for name in _SAYING.split() for function in forms(name)))(_passed)
special(torch._C._set_grad_enabled)(_passed)


def _reversed(input: Operand) -> Result:
    return permute(input, tuple(reversed(range(len(input.shape)))))


def _last_two(input: Operand) -> Result:
    order = tuple(range(len(input.shape)))
    return permute(input, (*order[:-2], order[-1], order[-2]))


_SAME: Final = Formula.read(FORMULAS["detach"])

for _name, _infer in {
    "T": _reversed,
    "mT": _last_two,
    "real": lambda input: _SAME.infer("real", (input,), {}),
}.items():
    special(getter(_name))(Pure(_name, _infer))


@special(setter("data"))
def set_data(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Other values of the same type."""
    x, values = args
    mine, theirs = read(x).layout, read(values).layout
    if read(x).owner is not None and theirs:  # a gradient that was reduced elsewhere
        func(*args, **kwargs)
        write(x, Tag(theirs, owner=read(x).owner))
        return
    for axis, kind in theirs.items():
        held = mine.get(axis)
        if held is not None and not agree(held, kind, flows=False):
            raise Refused(
                f"on axis {axis!r} .data would put {kind!r} into a tensor that is {held!r}",
                "a tensor keeps its type as long as it lives",
                f"values that are {held!r} on axis {axis!r}",
                code=Code.WRITE,
            )
    func(*args, **kwargs)
    if mine and not theirs:
        overwritten(x, read(x))
    written(x)


@special(torch.Tensor.__deepcopy__)
def deepcopied(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A copy has the type of what it copies."""
    result = func(*args, **kwargs)
    tag = read(args[0])
    write(result, Tag(tag.layout, tag.fresh, tag.counted, tag.factors, stated=tag.stated))
    return result


def _length(local: int, origin: Origin | None) -> int:
    """A local length, that remembers what it is where the dim is sharded."""
    return local if origin is None else whole(local, origin)


def _cuts(check: TypeCheck, x: Tensor) -> Sequence[Origin | None]:
    """What to say of the local length of each dim; empty where all are whole."""
    cuts: Sequence[Origin | None] = check.operand(x).cuts
    own: frozenset[str] = x.__dict__.get(OWN, frozenset())
    if cuts or not own:
        return cuts
    return [Origin(Source.LENGTH, own, f"x.shape[{dim}]", order=tuple(sorted(own))) for dim in range(x.dim())]


@special(getter("shape"), torch.Tensor.size)
def shaped(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a rank holds; the length of a sharded dim says that it is not that of the whole."""
    found = func(*args, **kwargs)
    tag = read(args[0])
    if not tag.layout.cut and (tag.fresh is None or not tag.layout) and OWN not in args[0].__dict__:
        return found
    cuts = _cuts(check, args[0])
    if not cuts:
        return found
    if isinstance(found, torch.Size):
        return torch.Size([_length(local, origin) for local, origin in zip(found, cuts, strict=True)])
    dim = (args[1] if len(args) > 1 else kwargs["dim"]) % len(cuts)
    return _length(found, cuts[dim])


@special(torch.Tensor.__len__)
def first_length(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """len() gives a plain int whatever is returned here, so that nothing follows where it goes."""
    cuts = check.operand(args[0]).cuts
    if cuts and cuts[0] is not None and not check.local:
        axes = ", ".join(map(repr, sorted(cuts[0].axes)))
        refused = Refused(
            f"len() gives a plain number, of a dim that is sharded on axis {axes}",
            "nobody sees whether it is meant as what this rank holds, or as the length over all ranks",
            f"x.shape[0], which is followed; or of all ranks: spmd.size(x, 0, {axes})",
            code=Code.LENGTH,
        )
        refused.call = "len"
        raise refused
    return func(*args, **kwargs)


@special(size)
def whole_length(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The axes that are named are those that shard the dim, evenly."""
    x, dim, *axes = args
    if not isinstance(x, Tensor) or not is_whole(dim) or not -x.dim() <= dim < x.dim():
        raise no_dim(x, dim)
    seen = check.operand(x)
    at = dim % max(len(seen.shape), 1)
    named = {axis if isinstance(axis, str) else find(axis).name for axis in axes}
    shards = {axis for axis in seen.layout.sharding(at) if check.degree[axis] > 1}
    told = {axis for axis in named if check.degree.get(axis, 1) > 1}
    if not axes:
        return seen.whole[at]
    found = func(*args, **kwargs)
    if told != shards and not (check.local and V in seen.layout.values()):
        right = ", ".join([str(dim), *(repr(axis) for axis in seen.layout.sharding(at))])
        raise Refused(
            f"dim {at} is sharded over {', '.join(sorted(shards)) or 'no axis'}, and its size is asked for over "
            f"{', '.join(sorted(told)) or 'no axis'}",
            "the length over all ranks is the local one times the ranks of the axes that shard the dim",
            f"spmd.size(x, {right})",
            code=Code.LENGTH,
        )
    if told == shards and found != seen.whole[at]:
        raise Refused(
            f"dim {at} of {seen.whole[at]} is cut unevenly, and a rank's {seen.shape[at]} times the ranks is {found}",
            "ranks hold different lengths of it",
            f"the number itself: {seen.whole[at]}",
            code=Code.LENGTH,
        )
    return int(found)


def _counted(text: str) -> Handler:
    def count(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        found = func(*args, **kwargs)
        axes = {axis for origin in _cuts(check, args[0]) if origin is not None for axis in origin.axes}
        return whole(found, Origin(Source.LENGTH, frozenset(axes), text)) if axes else found

    count.__doc__ = f"How much a rank holds: {text}."
    return count


special(*forms("numel"), *forms("nelement"))(_counted("x.numel()"))
special(getter("nbytes"))(_counted("x.nbytes"))


@dataclass(frozen=True)
class _Shared(Pure):
    """The same memory without a gradient: a write into one is a write into both."""

    def __call__(
        self, check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        result = check.judge(self, func, args, kwargs)
        share(result, args[0])
        if read(args[0]).owner is not None:
            named_alike(check.operand(args[0]), result)
        return result


special(*forms("detach"))(_Shared("detach", lambda input: _SAME.infer("detach", (input,), {})))
special(getter("data"))(_Shared("data", lambda input: _SAME.infer("data", (input,), {})))
