"""Custom `autograd.Function`s: each declares its type, and its backward is held against its forward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from meshwright.check.algebra import agree
from meshwright.check.context import active, local
from meshwright.check.function_adjoint import untried
from meshwright.check.function_apart import apart, copied, is_kept_elsewhere
from meshwright.check.function_body import Body, Context
from meshwright.check.function_call import argument_names
from meshwright.check.function_ranks import trial
from meshwright.check.intercept import mode_is_on, place
from meshwright.check.mode import TypeCheck
from meshwright.check.refusal import Refused, change
from meshwright.check.report import Trusted
from meshwright.check.source import line
from meshwright.check.tag import APART, UNKNOWN, read, typed, write
from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.argument import shown
from meshwright.types.kinds import I, R, Shard, SpmdType
from meshwright.types.layout import SpmdLayout

C = TypeVar("C", bound=type)

_HOOK: Final = "spmd_typecheck"
_unproven: Final[set[type]] = set()
_proven: Final[dict[Any, list[Trusted]]] = {}
"""Function and types of a call that was held against its backward -> what of it was taken on trust."""


@overload
def register_autograd_function(cls: C, *, adjoint: bool = True) -> C: ...
@overload
def register_autograd_function(cls: None = None, *, adjoint: bool = True) -> Callable[[C], C]: ...
def register_autograd_function(cls: C | None = None, *, adjoint: bool = True) -> Any:
    """Declare that an `autograd.Function` has a type, which its static method `spmd_typecheck` says.

    `spmd_typecheck(*, x, weight)` takes what it needs of `forward`'s arguments, by name, and returns the type of the
    output: {axis: type}, a tensor that has it (computed by typed operations from the arguments), or a tuple of these
    for several outputs. `spmd_typecheck(outputs, *, x)` may instead state them with `assert_type`.

    A class with that method needs no registration. adjoint=False: backward is not forward's gradient, on purpose, as
    of a straight-through estimator; its types are verified all the same.
    """
    if cls is None:
        return lambda each: register_autograd_function(each, adjoint=adjoint)
    if not hasattr(cls, _HOOK):
        raise SpmdTypeError(
            Problem(
                where="register_autograd_function",
                what=f"{getattr(cls, '__name__', shown(cls))} has no static method {_HOOK}",
                why="it says what the outputs are, of what the arguments are",
                fix=f"@staticmethod def {_HOOK}(*, x): ..., which returns the type of the output",
                code=Code.FUNCTION,
            )
        )
    if not adjoint:
        _unproven.add(cls)
    return cls


@place(lambda: torch.autograd.Function, "apply")
def applied(original: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Function.apply`, which no mode sees."""
    check = active()
    if check is None or not mode_is_on():
        return original(cls, *args, **kwargs)
    reentrant = getattr(sys.modules.get("torch.utils.checkpoint"), "CheckpointFunction", None)
    if cls is reentrant:
        run, _, *inputs = args  # what is recomputed later is judged now, with gradients on
        return run(*inputs)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if cls.__module__ == "torch.nn.modules._functions" and cls.__name__ == "BackwardHookFunction":
        outputs = original(cls, *args, **kwargs)  # how hooks of a module see its gradients: nothing is computed
        for x, y in zip(args, outputs if isinstance(outputs, tuple) else (outputs,), strict=False):
            write(y, read(x))
        return outputs
    if not any(read(x).layout for x in tensors):
        return original(cls, *args, **kwargs)
    if cls.__module__ == "torch._dynamo._trace_wrapped_higher_order_op" and cls.__name__ == "ModIndex":
        return _picked(original, cls, *args)
    # with its numbers as they are: those that depend on the rank say so inside
    return check.run(lambda check, *_: _judged(check, original, cls, args, kwargs), cls.apply, args, kwargs)


def _picked(original: Callable[..., Any], cls: Any, x: Tensor, indices: Sequence[Any]) -> Tensor:
    """How masks of `flex_attention` pick from a tensor: alike where it is alike, else nothing is known of it."""
    with torch._C.DisableTorchFunction():
        picked: Tensor = original(cls, x, indices)
    known = [read(each).layout for each in (x, *indices) if isinstance(each, Tensor)]
    if all(kind in (R, I) for layout in known for kind in layout.values()):
        write(picked, typed(SpmdLayout({axis: R for layout in known for axis in layout})))
    return picked


def _judged(
    check: TypeCheck, original: Callable[..., Any], cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    hook = getattr(cls, _HOOK, None)
    if hook is None:
        raise _named(cls, _undeclared(cls))
    inputs = [x for x in args if isinstance(x, Tensor)]
    before = [check.operand(x) for x in inputs]
    with local(), Body():
        outputs = original(cls, *args, **kwargs)
    results = _tensors(outputs)
    computed = [read(x).layout for x in results]
    declared = _declared(cls, hook, outputs, results, args)
    for place_, (found, stated) in enumerate(zip(computed, declared, strict=True)):
        _demand_alike(cls, f"output {place_} of forward", found, stated, "its declaration says")
    for x, stated in zip(results, declared, strict=True):
        write(x, typed(stated))
    key = (
        cls,
        tuple((each.tag, each.shape, each.dtype, each.flows) for each in before),
        tuple(declared),
        tuple(check.degree.items()),
    )
    if key not in _proven and any(x.requires_grad for x in results):
        kept = is_kept_elsewhere()
        with apart():
            tried = _again(original, cls, args, kwargs, declared) if kept else (args, outputs, results)
            _proven[key] = _prove(check, cls, *tried, declared)
    for trusted in _proven.get(key, ()):
        check.report.trust(check.report.claims, replace(trusted, where=line()))
    return outputs


def _tensors(outputs: Any) -> list[Tensor]:
    return [x for x in (outputs if isinstance(outputs, (tuple, list)) else (outputs,)) if isinstance(x, Tensor)]


def _again(
    original: Callable[..., Any],
    cls: type,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    declared: Sequence[SpmdLayout],
) -> tuple[tuple[Any, ...], Any, list[Tensor]]:
    """The call once more, so that backward finds what was saved: its arguments, outputs, and the tensors of these."""
    args = tuple(map(copied, args))
    with local(), trial(), Body():
        outputs = original(cls, *args, **kwargs)
    results = _tensors(outputs)
    for x, stated in zip(results, declared, strict=True):
        write(x, typed(stated))
    return args, outputs, results


def _undeclared(cls: type) -> Refused:
    names = [name for name in inspect.signature(cls.forward).parameters if name != "ctx"]  # type: ignore[attr-defined]
    return Refused(
        f"{cls.__name__} is a custom autograd.Function and says nothing of types",
        "what its forward and its backward do to a tensor that is spread over ranks is not known",
        f"a static method of {cls.__name__}: def {_HOOK}(*, {', '.join(names)}): return {{axis: type}}, "
        "the type of its output",
        code=Code.FUNCTION,
    )


def _named(cls: type, refused: Refused) -> Refused:
    refused.call = f"{cls.__name__}.apply"
    return refused


def _declared(
    cls: type, hook: Callable[..., Any], outputs: Any, results: Sequence[Tensor], args: tuple[Any, ...]
) -> list[SpmdLayout]:
    names = list(inspect.signature(cls.forward).parameters)  # type: ignore[attr-defined]
    names = names[1:] if names and len(names) > len(args) else names
    given = dict(zip(names, args, strict=False))
    wanted = inspect.signature(hook).parameters
    stamps = [name for name, each in wanted.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    chosen = {name: given[name] for name in wanted if name not in stamps and name in given}
    for x in results:
        write(x, UNKNOWN)
        x.__dict__[APART] = True
    with apart():
        said = hook(outputs, **chosen) if stamps else hook(**chosen)
    if stamps:
        found = [read(x).layout for x in results]
    else:
        each = [said] if isinstance(said, (Mapping, Tensor)) else list(said or ())
        found = [read(one).layout if isinstance(one, Tensor) else SpmdLayout(one) for one in each]
    if len(found) != len(results) or not all(found):
        by_place = "; {}, which stands by position, is the outputs: arguments of forward stand behind a *"
        by_place = by_place.format(stamps[0]) if stamps and stamps[0] in given else ""
        raise _named(
            cls,
            Refused(
                f"{cls.__name__}.{_HOOK} says what {len([one for one in found if one])} of {len(results)} outputs are",
                "each tensor that comes out has a type",
                f"return one {{axis: type}} for each output{by_place}",
                code=Code.FUNCTION,
            ),
        )
    return found


def _demand_alike(
    cls: type, what: str, found: Mapping[str, SpmdType], stated: Mapping[str, SpmdType], who: str, fix: str = ""
) -> None:
    for axis, kind in found.items():
        known = stated.get(axis)
        if known is None or agree(known, kind, flows=False):
            continue
        if {known.letter, kind.letter} == {"S", "V"} or (isinstance(known, Shard) and isinstance(kind, Shard)):
            continue
        raise _named(
            cls,
            Refused(
                f"on axis {axis!r} {what} is {kind!r}, and {who} {known!r}",
                "forward and backward of a Function must do what its type says: nothing else looks into them",
                fix or f"declare {kind!r} on axis {axis!r}; or {change('the result', axis, kind, known)} in it",
                code=Code.FUNCTION,
            ),
        )


def _prove(
    check: TypeCheck,
    cls: Any,
    args: tuple[Any, ...],
    outputs: Any,
    results: Sequence[Tensor],
    declared: Sequence[SpmdLayout],
) -> list[Trusted]:
    """Backward, given gradients of the outputs' duals, returns gradients of the inputs' duals, and the right ones.

    Returns what of that could not be tried.
    """
    believed: list[Trusted] = []
    ctx = next(x.grad_fn for x in results if x.grad_fn is not None)
    layouts = iter(declared)
    seeds: list[Any] = []
    for x in outputs if isinstance(outputs, tuple) else (outputs,):
        if not isinstance(x, Tensor):
            seeds.append(None)
            continue
        with torch._C.DisableTorchFunction():
            seed = torch.ones_like(x)
        write(seed, typed(next(layouts).dual))
        seeds.append(seed)
    try:
        with torch.no_grad(), local(), trial(), Body():
            gradients = cls.backward(Context(ctx, results), *seeds)
    except (SpmdTypeError, Refused):
        raise
    except Exception as error:
        return [Trusted("", f"the gradients of {cls.__name__}", f"backward fails: {type(error).__name__}: {error}")]
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    _demand_each(cls, args, gradients)
    for name, x, gradient in _pairs(cls, args, gradients):
        _demand_shape(cls, name, x, gradient)
        expected = read(x).layout.dual
        found = read(gradient).layout
        if found:
            owed = f"reduce it in backward over the axis: the gradient of {name} sums what every rank contributes"
            _demand_alike(cls, f"the gradient that backward returns for {name}", found, expected, f"{name} wants", owed)
        else:
            believed.append(Trusted("", f"the gradient of {name} that {cls.__name__} returns"))
    if cls in _unproven:
        return believed
    reason = untried(check.mesh, cls, args, declared)
    if reason:
        believed.append(Trusted("", f"the values of {cls.__name__}.backward", reason))
    return believed


def _demand_each(cls: Any, args: Sequence[Any], gradients: Sequence[Any]) -> None:
    if len(gradients) < len(args) or any(each is not None for each in gradients[len(args) :]):
        raise _named(
            cls,
            Refused(
                f"backward of {cls.__name__} returns {len(gradients)} gradients, and forward takes {len(args)} "
                "arguments",
                "each argument of forward has a gradient, None where it needs none",
                f"one for each of {', '.join(argument_names(cls))}",
                code=Code.FUNCTION,
            ),
        )


def _demand_shape(cls: Any, name: str, x: Tensor, gradient: Tensor) -> None:
    shape, found = tuple(x.shape), tuple(gradient.shape)
    aligned = zip(reversed(shape), reversed(found), strict=False)
    if len(shape) <= len(found) and all(n in (1, m) for n, m in aligned):
        return  # autograd sums what was spread
    raise _named(
        cls,
        Refused(
            f"backward of {cls.__name__} returns a gradient of shape {found} for {name}, which is {shape} on this rank",
            "a gradient has the shape of its tensor",
            f"mend backward: a collective in it takes or leaves another dim than forward does; it returns {shape}",
            code=Code.FUNCTION,
        ),
    )


def _pairs(cls: Any, args: tuple[Any, ...], gradients: Sequence[Any]) -> list[tuple[str, Tensor, Tensor]]:
    return [
        (name, x, gradient)
        for name, x, gradient in zip(argument_names(cls), args, gradients, strict=False)
        if isinstance(x, Tensor) and x.requires_grad and isinstance(gradient, Tensor)
    ]
