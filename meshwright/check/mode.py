"""`typecheck`: while it is on, every call of torch on tensors is judged before it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from meshwright.check import source
from meshwright.check.algebra import Result, demand_kept
from meshwright.check.operand import Cut, Operand, Shape, local_shape, whole_shape
from meshwright.check.refusal import Refused, no_rule
from meshwright.check.rule import RULES, Pure
from meshwright.check.tag import CONSTANT, UNKNOWN, Tag, read, write
from meshwright.comm.scope import View, current_mesh
from meshwright.errors import Problem, SpmdTypeError


class _Outcome(NamedTuple):
    """tag and local shape of each tensor that a call returns; a shape that depends on values is None."""

    tag: Tag
    shape: Shape | None


class TypeCheck(TorchFunctionMode):
    """Follows the type of every tensor of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.mesh: View = View({})
        self._operands: dict[Any, Operand] = {}
        self._outcomes: dict[Any, Any] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        try:
            self._follow_mesh()
            return RULES.get(func, _unruled)(self, func, args, kwargs)
        except Refused as refused:
            self._refuse(func, args, kwargs, refused)

    def operand(self, x: Tensor) -> Operand:
        """What a rule sees of `x`."""
        tag = read(x)
        key = tag, x.shape, x.requires_grad and torch.is_grad_enabled(), x.dtype
        found = self._operands.get(key)
        if found is None:
            shape = tuple(x.shape)
            whole = whole_shape(shape, tag.layout, self.mesh)
            found = self._operands[key] = Operand(tag, shape, whole, key[2], x.dtype)
        return found

    def judge(self, rule: Pure, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run `func` if `rule` allows it, and note what it returns."""
        seen: list[Operand] = []
        given = tuple([self.seen_by_rules(argument, seen) for argument in args])
        named = {name: self.seen_by_rules(argument, seen) for name, argument in kwargs.items()}
        if not any(operand.tag.layout for operand in seen):
            return self.note_plain(func(*args, **kwargs), seen)
        key = func, given, tuple(named.items()), torch.is_grad_enabled()
        try:
            outcomes = self._outcomes.get(key)
            if outcomes is None:
                outcomes = self._outcomes[key] = self._decide(rule, given, named)
        except TypeError:  # an argument that cannot be a key
            outcomes = self._decide(rule, given, named)
        result = func(*args, **kwargs)
        self.note(outcomes, args[0] if rule.writes else result)
        return result

    def seen_by_rules(self, argument: Any, seen: list[Operand]) -> Any:
        """The argument with an `Operand` in place of each tensor, as a value that can be a key."""
        if isinstance(argument, Tensor):
            operand = self.operand(argument)
            seen.append(operand)
            return operand
        if isinstance(argument, (list, tuple)):
            return tuple([self.seen_by_rules(each, seen) for each in argument])
        if isinstance(argument, slice):
            return Cut(*(self.seen_by_rules(end, seen) for end in (argument.start, argument.stop, argument.step)))
        if type(argument) is float:
            return 1.0 if argument else 0.0  # a rule asks of a number only whether it is zero
        return argument

    def note(self, outcomes: Any, result: Any) -> None:
        """Tag what a call returned, after its shape is found to be the expected one."""
        if isinstance(outcomes, _Outcome):
            if outcomes.shape is not None and tuple(result.shape) != outcomes.shape:
                raise Refused(
                    f"a rank gets {tuple(result.shape)} where {outcomes.tag.layout} leaves it {outcomes.shape}",
                    "what a rank computes from its part is its part of what one device computes from the whole",
                )
            write(result, outcomes.tag)
        elif outcomes is not None:
            for outcome, part in zip(outcomes, result, strict=True):
                self.note(outcome, part)

    def note_plain(self, result: Any, seen: Sequence[Operand]) -> Any:
        """Tag the result of a call on tensors without a type: constant if all of them are, else without a type."""
        tag = CONSTANT if seen and all(operand.tag.fresh is not None for operand in seen) else UNKNOWN
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, Tensor):
                write(tensor, tag)
        return result

    def _decide(self, rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        try:
            results = rule.infer(*given, **named)
        except (TypeError, ValueError, IndexError) as error:
            raise no_rule(f"this form of {rule.name} ({error})") from None
        one = isinstance(results, Result)
        each: Sequence[Result] = (results,) if one else results
        if rule.writes:
            targets: Sequence[Operand] = given[0] if isinstance(given[0], tuple) else given[:1]
            each = [_written(rule.name, target, result) for target, result in zip(targets, each, strict=True)]
        noted = tuple([self._noted(result) for result in each])
        return noted[0] if one else noted

    def _noted(self, result: Result) -> _Outcome:
        whole = result.whole
        return _Outcome(result.tag, None if whole is None else local_shape(whole, result.tag.layout, self.mesh))

    def _follow_mesh(self) -> None:
        mesh = current_mesh()
        if mesh is not None and mesh is not self.mesh:
            self.mesh = mesh
            self._operands.clear()
            self._outcomes.clear()

    def _refuse(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], refused: Refused
    ) -> NoReturn:
        operands = refused.operands or tuple(
            self._shown(each)
            for argument in (*args, *kwargs.values())
            for each in (argument if isinstance(argument, (list, tuple)) else (argument,))
            if isinstance(each, Tensor)
        )
        name = refused.call or getattr(func, "__name__", str(func))
        what = f"{refused.what}, in {name}({', '.join(map(str, operands))})"
        raise SpmdTypeError(Problem(where=source.line(), what=what, why=refused.why, fix=refused.fix)) from None

    def _shown(self, x: Tensor) -> Operand:
        try:
            return self.operand(x)
        except (Refused, SpmdTypeError):  # its layout does not fit its shape: that is what is refused
            return Operand(read(x), tuple(x.shape), tuple(x.shape), False, x.dtype)


def _written(op: str, target: Operand, result: Result) -> Result:
    """What a tensor is after `result` was written into it.

    Where no gradient flows R and I are not told apart: the tensor stays what it was.
    """
    demand_kept(op, target, result)
    stays = not torch.is_grad_enabled() and target.tag.fresh is None
    return Result(target.tag, target.whole) if stays else result


def _unruled(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A function without a rule may take no tensor that has a type."""
    if getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):
        return func(*args, **kwargs)
    seen: list[Operand] = []
    check.seen_by_rules((*args, *kwargs.values()), seen)
    if any(operand.tag.layout for operand in seen):
        raise no_rule(getattr(func, "__name__", str(func)))
    return check.note_plain(func(*args, **kwargs), seen)


class _Checking(threading.local):
    check: TypeCheck | None = None


_checking: Final = _Checking()


def active() -> TypeCheck | None:
    """The checker of this thread, if it is on."""
    check = _checking.check
    return check if check is not None and not check.paused else None


def is_type_checking() -> bool:
    """Whether calls of this thread are judged now."""
    return active() is not None


@contextmanager
def typecheck() -> Iterator[None]:
    """Judge every call on tensors until the end of the block. Inside another such block it changes nothing.

    Errors, at the call: `SpmdTypeError` naming the operands, the axis, the reason and what to write instead.
    """
    if _checking.check is not None:
        yield
        return
    with TypeCheck() as check:
        _checking.check = check
        try:
            yield
        finally:
            _checking.check = None


@contextmanager
def no_typecheck() -> Iterator[None]:
    """Judge nothing until the end of the block; what is computed in it has no type until one is stated."""
    check = active()
    if check is None:
        yield
        return
    check.paused = True
    try:
        yield
    finally:
        check.paused = False
