"""Gradients: what a loss may be, what `.grad` carries, and who refuses a gradient that is still a sum over ranks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from meshwright.check import source
from meshwright.check.algebra import agree
from meshwright.check.aliases import refreshed
from meshwright.check.context import active, is_type_checking
from meshwright.check.intercept import listening
from meshwright.check.memory import overwritten
from meshwright.check.mode import STATES, TypeCheck
from meshwright.check.refusal import Refused, change
from meshwright.check.rule import getter, setter, special
from meshwright.check.rules_collective import on_whole_dims
from meshwright.check.tag import UNKNOWN, Tag, noted, read, typed, write
from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

Call = tuple[Any, ...]


@special(torch.Tensor.backward)
def tensor_backward(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> None:
    """`loss.backward()`: seeds are verified before, gradients noted after."""
    given = _named(("tensor", "gradient", "retain_graph", "create_graph", "inputs"), args, kwargs)
    _backward((given["tensor"],), (given.get("gradient"),), given.get("inputs"), lambda: func(*args, **kwargs))


@special(torch.autograd.backward)
def autograd_backward(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> None:
    """`torch.autograd.backward`, as `loss.backward()` of several."""
    names = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
    given = _named(names, args, kwargs)
    tensors = _listed(given["tensors"])
    if not all(isinstance(x, Tensor) for x in tensors):
        return func(*args, **kwargs)  # torch says what it takes
    seeds = _listed(given.get("grad_tensors")) or (None,) * len(tensors)
    _backward(tensors, seeds, given.get("inputs"), lambda: func(*args, **kwargs))


@special(torch.autograd.grad)
def autograd_grad(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> Any:
    """`torch.autograd.grad`: what it returns has the dual types of the inputs."""
    given = _named(("outputs", "inputs", "grad_outputs"), args, kwargs)
    outputs, inputs = _listed(given["outputs"]), _listed(given["inputs"])
    if not all(isinstance(x, Tensor) for x in (*outputs, *inputs)):
        return func(*args, **kwargs)  # torch says what it takes
    _demand_seeds(outputs, _listed(given.get("grad_outputs")) or (None,) * len(outputs))
    gradients = func(*args, **kwargs)
    for x, gradient in zip(inputs, gradients, strict=True):
        if gradient is not None:
            write(gradient, gradient_tag(x))
    return gradients


@special(getter("grad"))
def get_grad(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> Tensor | None:
    """`.grad` carries the dual of its parameter, until another type is known of it."""
    gradient: Tensor | None = func(*args, **kwargs)
    if gradient is not None and refreshed(gradient) is UNKNOWN:
        write(gradient, gradient_tag(args[0]))
    return gradient


@special(setter("grad"))
def set_grad(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> None:
    """`.grad` is the dual of its parameter; of an R parameter also the sum, once it is reduced."""
    x, gradient = args
    if isinstance(gradient, Tensor):
        for axis, kind in read(gradient).layout.items():
            mine = read(x).layout.get(axis)
            if mine is not None and kind is not mine.dual and not agree(mine, kind, flows=False):
                raise Refused(
                    f"on axis {axis!r} the gradient is {kind!r}, and {source.name_of(x)} is {mine!r}",
                    f"the gradient of {mine!r} is {mine.dual!r}",
                    change("gradient", axis, kind, mine),
                    code=Code.REDUCED,
                )
        if read(gradient).owner is None and read(gradient).layout:
            write(gradient, Tag(read(gradient).layout, owner=weakref.ref(x)))
    func(*args, **kwargs)


def gradient_tag(x: Tensor) -> Tag:
    """What is known of a gradient of `x`: the dual of its type, or what a hook made of that."""
    layout = expected_gradient(x)
    if not layout:
        return UNKNOWN
    return Tag(layout, owner=weakref.ref(x)) if x.is_leaf else typed(layout)


_HOOKED: Final = "_spmd_hooked"


def expected_gradient(x: Tensor) -> SpmdLayout:
    """The type that autograd's gradient of `x` has, after its hooks."""
    found: SpmdLayout = x.__dict__.get(_HOOKED) or read(x).layout.dual
    return found


@special(torch.Tensor.register_hook)
def hooked(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> Any:
    """A hook is judged when backward runs it; what it returns in place of a leaf's gradient is the leaf's gradient."""
    given = _named(("x", "hook"), args, kwargs)
    x, hook = given["x"], given["hook"]
    whose, then, awaited = weakref.ref(x), read(x).layout, expected_gradient(x)

    def judged(gradient: Tensor) -> Any:
        owner = whose()  # the graph keeps the hook, and not the tensor
        known = then if owner is None else read(owner).layout
        if active() is not check or not known:
            return hook(gradient)
        with listening(check):
            if read(gradient) is UNKNOWN:
                write(gradient, typed(awaited if owner is None else expected_gradient(owner)))
            result = hook(gradient)
        if isinstance(result, Tensor) and read(result).layout:
            check.run(_replaced, torch.Tensor.register_hook, (owner, known, result), {})
        return result

    return func(x, judged)


def _replaced(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> None:
    owner, mine, result = args
    is_leaf = owner is not None and owner.is_leaf
    for axis, kind in read(result).layout.items():
        expected = mine.get(axis)
        if expected is None or agree(expected.dual, kind, flows=False) or (is_leaf and kind is expected):
            continue
        raise Refused(
            f"on axis {axis!r} a hook makes the gradient {kind!r}, and the tensor is {expected!r}",
            f"the gradient of {expected!r} is {expected.dual!r}",
            f"a hook that returns {expected.dual!r} on axis {axis!r}",
            code=Code.REDUCED,
        )
    if is_leaf:
        owner.__dict__[_HOOKED] = read(result).layout


STATES[torch.Tensor.register_hook] = lambda check, func, args, kwargs: None


@special(torch.Tensor.register_post_accumulate_grad_hook)
def hooked_after(check: TypeCheck, func: Callable[..., Any], args: Call, kwargs: Mapping[str, Any]) -> Any:
    """A hook that runs when `.grad` is there is judged like the code behind backward."""
    given = _named(("x", "hook"), args, kwargs)
    hook = given["hook"]

    def judged(x: Tensor) -> None:
        if active() is not check:
            return hook(x)
        with listening(check):
            return hook(x)

    return func(given["x"], judged)


def _backward(roots: Sequence[Tensor], seeds: Sequence[Tensor | None], inputs: Any, run: Callable[[], Any]) -> None:
    _demand_seeds(roots, seeds)
    leaves = list(_listed(inputs)) if inputs is not None else list(_leaves(roots))
    for leaf in leaves:
        _demand_unreduced(leaf)
    before = [leaf.grad is not None for leaf in leaves]
    run()
    for leaf, added in zip(leaves, before, strict=True):
        if leaf.grad is not None:
            # one that torch made may lie in the memory of a seed, with other dims
            known = read(leaf.grad) if added else noted(leaf.grad)
            tag = known if known.layout else gradient_tag(leaf)
            write(leaf.grad, tag)  # as it is after the sum
            if tag is not known:
                overwritten(leaf.grad, tag)


def _as_dual(name: str, axis: str, known: SpmdType | None, kind: SpmdType) -> str:
    """How a gradient is made that of a loss which is `kind`."""
    if (known in (None, R, I) and kind.dual in (R, I, V)) or known is V or isinstance(kind.dual, Shard):
        return f"assert_type({name}, {{{axis!r}: {kind.dual!r}}})"
    return change(name, axis, known or R, kind.dual)


def _demand_seeds(roots: Sequence[Tensor], seeds: Sequence[Tensor | None]) -> None:
    """A seed has the dual type of its root; the 1 that torch takes is the same on every rank, as of I and P."""
    for root, seed in zip(roots, seeds, strict=True):
        stated = SpmdLayout({}) if seed is None else read(seed).layout
        layout = read(root).layout
        if seed is not None and read(root).factors != read(seed).factors:
            layout, stated = _dims(root, stated), _dims(seed, layout)
        for axis, kind in layout.items():
            known = stated.get(axis)
            if known is kind.dual or (known is None and kind in (I, P)) or (kind in (I, P) and known in (R, I)):
                continue
            what = "no gradient is given" if seed is None else f"the given gradient is {known or 'untyped'!s}"
            if kind is R:
                raise Refused(
                    f"the loss is R on axis {axis!r}, and {what}",
                    "the gradient of R is P: the same seed on every rank would count the loss once a rank",
                    f"a loss that is P (each rank's own part) or I; R -> P: convert(loss, {axis!r}, src=R, dst=P)",
                    code=Code.SEED,
                )
            raise Refused(
                f"the loss is {kind!r} on axis {axis!r}, and {what}",
                f"the gradient of {kind!r} is {kind.dual!r}; a loss is one number over all ranks",
                _as_dual("gradient", axis, known, kind)
                if seed is not None
                else f"a sum over {axis}: loss.sum(), which is P where a dim of the loss is sharded; or of V "
                f"reinterpret(loss, {axis!r}, src=V, dst=P), if the sum of what the ranks have is meant",
                code=Code.SEED,
            )


def _dims(x: Tensor, other: SpmdLayout) -> SpmdLayout:
    """The layout of `x` on dims, to be held against that of a tensor whose dims are not the same products.

    Errors: `Refused` where an axis that shards `other` shards a factor whose parts do not lie end to end.
    """
    check = active()
    assert check is not None
    return on_whole_dims(check.operand(x), list(other.sharded))


def _demand_unreduced(leaf: Tensor) -> None:
    """Backward adds to `.grad` what each rank contributes; a sum that is reduced already must not be added to."""
    if leaf.grad is None:
        return
    for axis, kind in refreshed(leaf.grad).layout.items():
        expected = expected_gradient(leaf).get(axis)
        if expected is not None and not agree(expected, kind, flows=False):
            raise Refused(
                f"on axis {axis!r} the gradient of {source.name_of(leaf)} is {kind!r} already, and backward adds "
                f"{expected!r} to it",
                "a sum over ranks that was reduced would be reduced again together with what is new",
                "accumulate first and reduce once; or zero_grad() before this backward",
                code=Code.REDUCED,
            )


def _leaves(roots: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaves that backward from `roots` reaches."""
    seen: set[Any] = set()
    open_: list[Any] = []
    for root in roots:
        if root.grad_fn is not None:
            open_.append(root.grad_fn)
        elif root.requires_grad:
            yield root
    while open_:
        node = open_.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        open_ += [parent for parent, _ in node.next_functions if parent is not None]


def _listed(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, Tensor) else (value,)


def _named(names: Sequence[str], args: Call, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """No optimizer takes a gradient that is still a sum over ranks.

    Errors: `SpmdTypeError` naming the parameter and the axis.
    """
    if not is_type_checking():
        return
    check = active()
    assert check is not None
    problems = []
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or (f"parameter {place} of group {number}" for place in itertools.count())
        for x, name in zip(group["params"], names, strict=False):
            for axis, kind in _unfit(x):
                mine = read(x).layout.get(axis)
                why, fix = _UNFIT[kind]
                problems.append(
                    Problem(
                        where=source.line(),
                        what=f"{type(optimizer).__name__}.step() meets a gradient that is {kind!r} on axis {axis!r}, "
                        f"of {name}, {source.name_of(x)}, which is {mine!r}",
                        why=f"{why}, and the ranks would drift apart",
                        fix=fix.format(axis=repr(axis)),
                        code=Code.REDUCED,
                    )
                )
    if problems and not check.collect:
        raise SpmdTypeError(problems)
    for problem in problems:
        check.report.add(problem)
    for group in optimizer.param_groups if problems else ():
        for x in group["params"]:
            _assume_reduced(x)


_UNFIT: Final = {
    P: (
        "each rank holds its own part of the gradient",
        "P -> R: p.grad = all_reduce(p.grad, {axis}, src=P, dst=R) before the step",
    ),
    V: (
        "each rank may hold another gradient",
        "reduce it over {axis} before it goes into a vector with what is sharded there, and then say that it is alike: "
        "p.grad = mutate_type(p.grad, {axis}, src=V, dst=R)",
    ),
}
"""What a gradient is, of a parameter that the ranks hold alike -> why it is refused, and what to do."""


def _assume_reduced(x: Tensor) -> None:
    """The step goes on with the gradient as the fix leaves it: what is owed was said."""
    unfit = _unfit(x)
    gradient = x.grad
    if unfit and gradient is not None:
        tag, mine = read(gradient), read(x).layout
        write(gradient, replace(tag, layout=tag.layout.replace(**{axis: mine.get(axis, R) for axis, _ in unfit})))


def _unfit(x: Tensor) -> list[tuple[str, SpmdType]]:
    """The axes on which the gradient of `x` is still a sum and `x` is none, or is V where `x` is alike on all ranks."""
    if x.grad is None:
        return []
    held, found = read(x).layout, refreshed(x.grad).layout
    return [
        (axis, kind)
        for axis, kind in found.items()
        if (kind is P and held.get(axis) is not P) or (kind is V and held.get(axis) in (R, I))
    ]


register_optimizer_step_pre_hook(_before_step)
