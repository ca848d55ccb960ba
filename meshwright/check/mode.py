"""The function mode that sees every call of torch, and judges it before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from meshwright.check import source
from meshwright.check.algebra import Result
from meshwright.check.aliases import named_alike, note_writes
from meshwright.check.answer import Answers, Applied, answers_on, inferred, kept, refusal_of
from meshwright.check.constants import are_cut, is_zero, kept_by, of_constants
from meshwright.check.demand import demand_exact, demand_no_share, tensors_of
from meshwright.check.elsewhere import on_mesh, other_ranks, patterns
from meshwright.check.forget import forgotten
from meshwright.check.memory import overwritten
from meshwright.check.operand import FULL, Cut, Operand, Shape, local_shape, operand, stale
from meshwright.check.own_lengths import OWN, as_own
from meshwright.check.parts import Parts
from meshwright.check.refusal import Refused, mixed, no_rule, placed
from meshwright.check.report import Call, Report
from meshwright.check.rule import RULES, Handler, Pure, Spelled, aten_rule
from meshwright.check.shared import demand_unshared
from meshwright.check.spread import fitted
from meshwright.check.tag import (
    ASSUMED,
    ATTRIBUTE,
    UNKNOWN,
    VERSION,
    Fresh,
    Tag,
    constant,
    is_stale,
    read,
    typed,
    write,
)
from meshwright.check.trace import numbered, static
from meshwright.codes import Code
from meshwright.comm.followed import grounded
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.number import Number, Source, is_length
from meshwright.comm.scope import View, current_mesh
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, P, R, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.entering import Region


class _Outcome(NamedTuple):
    """tag and local shape of each tensor that a call returns; a shape that depends on values is None."""

    tag: Tag
    shape: Shape | None


_FULL: Final = None, None, None
_NONE: Final[Mapping[str, Any]] = {}
_NO_AXES: Final[frozenset[str]] = frozenset()

_PLAIN: Final = frozenset({int, bool, str, type(None), torch.dtype})
"""Types of arguments that rules see as they are."""


class TypeCheck(TorchFunctionMode):
    """Follows the type of every tensor of one thread.

    local: only R, I, V and P are told apart, and not which dim is cut. collect: note problems and go on. trace: where
    it is a list, each call adds what must be alike on all ranks. rank: the one that is played, where it is not this
    process's.
    """

    def __init__(
        self,
        report: Report,
        *,
        local: bool = False,
        collect: bool = False,
        trace: list[Any] | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__()
        self.report = report
        self.local, self.collect, self.trace, self.rank = local, collect, trace, rank
        self.varying_seed: frozenset[str] = frozenset()
        self.seeds: dict[int, frozenset[str]] = {torch.initial_seed(): frozenset()}
        """Seeds of torch's own generator -> the axes on which they differ; the one that it has now is that of all."""
        self.told: Problem | None = None
        """What was said last."""
        self.paused = False
        self.region: Region | None = None
        self.mesh: View = View({})
        self.degree: Mapping[str, int] = {}
        self.numbers: list[Number] = []
        self._places: set[str] = set()
        self._meets_numbers = False
        self.made = 0
        self.axes: dict[str, MeshAxis] = {}
        self._answers = Answers()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.paused:
            return func(*grounded(args), **grounded(kwargs or _NONE))
        return self.run(RULES.get(func, _unruled), func, args, kwargs or _NONE)

    def run(self, rule: Handler, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call, judged by `rule`.

        Errors: `SpmdTypeError` where it is refused, unless problems are collected.
        """
        try:
            mesh = current_mesh()
            if mesh is not self.mesh and mesh is not None:
                self._enter(mesh)
            if self.report.problems and self._takes_assumed(args, kwargs):
                return self._go_on(func, args, kwargs)
            if type(rule) is Pure:
                result = self.judge(rule, func, args, kwargs)
            elif type(rule) is Spelled:
                result = self.judge(rule, func, rule.spell(args), kwargs)
            else:
                result = rule(self, func, grounded(args), grounded(kwargs) if kwargs else kwargs)
            if self.region is not None:
                self.region.saw(args, kwargs, result)
            return result if self.trace is None else numbered(self, result)
        except Refused as refused:
            problem = self.told = self.problem(func, args, kwargs, refused)
            if not self.collect:
                raise SpmdTypeError(problem) from refused.__cause__
            self.report.add(problem)
            return self._go_on(func, args, kwargs)

    def look(self) -> None:
        """Know the mesh that is current, also before the first call on a tensor."""
        mesh = current_mesh()
        if mesh is not self.mesh and mesh is not None:
            self._enter(mesh)

    def operand(self, x: Tensor) -> Operand:
        """What a rule sees of `x`.

        Errors: `Refused` where its memory was written by a call that was not judged.
        """
        noted = x.__dict__
        tag = noted.get(ATTRIBUTE, UNKNOWN)
        if tag.fresh is not None or tag is UNKNOWN:
            tag = read(x)
        wants = x.requires_grad and torch.is_grad_enabled()
        key = tag, x.shape, wants, x.dtype, self.local
        found = self._answers.operands.get(key)
        if found is None:
            if tag.mixed:
                raise mixed(tag.mixed)
            here = on_mesh(tag, self.mesh, self.axes, self.local)
            found = operand(here, tuple(x.shape), wants, x.dtype, self.mesh, self.degree)
            self._answers.operands[key] = found
        if found.known and VERSION in noted and noted[VERSION][1] != x._version and is_stale(x):
            raise stale(x)
        return found

    def operand_of(self, tag: Tag, shape: Shape, like: Operand) -> Operand:
        """What a rule would see of a tensor of this tag and local shape, alike `like` in all else."""
        return operand(tag, shape, like.flows, like.dtype, self.mesh, self.degree)

    def judge(self, rule: Pure, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run `func` if `rule` allows it, and note what it returns."""
        seen: list[Operand] = []
        if self._meets_numbers:
            self.begin()
        values: list[Any] = []
        own = _NO_AXES
        for argument in args:
            kind = type(argument)
            if kind is Tensor or kind is Parameter:
                operand = self.operand(argument)
                seen.append(operand)
                values.append(operand)
            else:
                values.append(argument if kind in _PLAIN else self.seen_by_rules(argument, seen))
        given = tuple(values)
        named = {name: self.seen_by_rules(argument, seen) for name, argument in kwargs.items()} if kwargs else {}
        if self._meets_numbers:
            args, kwargs = grounded(args), grounded(kwargs)
            given, named, own = as_own(self, given, named, seen)
        if self.trace is not None:
            self.note_call(rule.name, (*args, *kwargs.values()))
        typed_any = partial = made = False
        for each in seen:
            if each.known and each.tag.fresh is None:
                typed_any = True
                partial = partial or each.partial
        if not typed_any and not (made := are_cut(self, rule, given, named, seen)):
            into = args[0] if rule.writes or kwargs.get("inplace") else kwargs.get("out")
            zero = is_zero(rule, given, named, seen)
            if into is not None:
                return self.note_written(func(*args, **kwargs), into, seen, zero)
            return self.note_plain(func(*args, **kwargs), seen, zero)
        target = args[0] if rule.writes else None
        if named:
            if kwargs.get("inplace"):
                rule, target, named["inplace"] = Pure(rule.name, rule.infer, writes=True), args[0], False
            elif "out" in named:
                del named["out"]
                target = kwargs["out"]
        if target is not None:
            before = [(tensor, read(tensor)) for tensor in tensors_of(target)]
            for tensor, _ in before:
                demand_unshared(rule.name, tensor)
        manner = self._manner() if self._meets_numbers or self.varying_seed else self.local
        key: tuple[Any, ...] = func, given, manner
        if named or target is not None:
            key = *key, tuple(named.items()), target is None, torch.is_grad_enabled()
        try:
            outcomes = self._answers.outcomes.get(key)
            if outcomes is None:
                outcomes = self._answers.outcomes[key] = self.decide(rule, given, named, target, (func, args, kwargs))
        except TypeError:  # an argument that cannot be a key
            outcomes = self.decide(rule, given, named, target, (func, args, kwargs))
        except Refused as refused:
            outcomes = fitted(self, rule, given, named, target, (func, args, kwargs), refused)
        if self.numbers:
            demand_no_share(self, rule.name)
        outcomes = of_constants(outcomes) if made else outcomes
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            reason = refusal_of(rule, given, named)  # what is wrong with the types, which a region forgets
            if reason is None:
                raise
            raise reason from error
        into = result if target is None else target
        self.note(outcomes, into)
        if own:
            for tensor in tensors_of(result):
                tensor.__dict__[OWN] = own
        if partial:
            for each in seen:
                demand_exact(rule.name, each, into)
        if target is not None:
            note_writes(before)
        elif seen and seen[0].tag.owner is not None:
            named_alike(seen[0], result)
        return Parts(result) if type(result) is tuple else result

    def begin(self) -> None:
        """A call: nothing is known yet of the numbers among its arguments."""
        self.numbers.clear()
        self._places = set()
        self._meets_numbers = False

    def demand_unplaced(self, op: str, layout: SpmdLayout) -> None:
        """No rank's place was among the arguments of a call whose result is the same on every rank.

        Errors: `Refused`.
        """
        for axis in self._places:
            if layout.get(axis) in (R, I, P):
                raise placed(axis, op, layout[axis])

    def _own(self, tag: Tag) -> Tag:
        """The tag of what a call made by a rank's place: V where nothing else is known."""
        axes = [axis for axis in sorted(self._places) if axis not in tag.layout]
        return typed(tag.layout.replace(**dict.fromkeys(axes, V)), tag.counted, tag.factors) if axes else tag

    def _manner(self) -> Any:
        """What an answer depends on besides the arguments."""
        return self.local, self.varying_seed, frozenset(self._places), tuple([each.origin for each in self.numbers])

    def seen_by_rules(self, argument: Any, seen: list[Operand]) -> Any:
        """The argument with an `Operand` in place of each tensor, as a value that can be a key."""
        kind = type(argument)
        if kind in _PLAIN:
            return argument
        if kind is slice:
            ends = argument.start, argument.stop, argument.step
            if _PLAIN.issuperset(map(type, ends)):
                return FULL if ends == _FULL else Cut(*ends)
            return Cut(*[self.seen_by_rules(end, seen) for end in ends])
        if isinstance(argument, Tensor):
            operand = self.operand(argument)
            seen.append(operand)
            return operand
        if isinstance(argument, (list, tuple)):
            return tuple([each if type(each) in _PLAIN else self._entry(each, seen) for each in argument])
        if kind is float:
            return 1.0 if argument else 0.0  # a rule asks of a number only whether it is zero
        if isinstance(argument, Number):
            self._meets_numbers = True
            return self._number(grounded(argument), seen)
        return argument

    def _entry(self, value: Any, seen: list[Operand]) -> Any:
        """An entry of a list: in a region a length, which may be another one on each rank."""
        if self.local and isinstance(value, Number) and value.origin.source is Source.INDEX and isinstance(value, int):
            self._meets_numbers = True
            self._places.update(self.axes_of(value))
            return int(value)
        return self.seen_by_rules(value, seen)

    def note(self, outcomes: Any, result: Any) -> None:
        """Tag what a call returned, after its shape is found to be the expected one."""
        if type(outcomes) is _Outcome:
            if not isinstance(result, Tensor):
                if isinstance(result, (list, tuple)):
                    raise no_rule("a form that returns several tensors")
                return  # a text, or NotImplemented, as of `x == None`
            if outcomes.shape is not None and result.shape != outcomes.shape:
                raise Refused(
                    f"a rank gets {tuple(result.shape)} where {outcomes.tag.layout} leaves it {outcomes.shape}",
                    "what a rank computes from its part is its part of what one device computes from the whole",
                    "lengths that divide over the ranks; or assert_type with the sizes of an uneven shard",
                    code=Code.SHAPE,
                )
            write(result, outcomes.tag)
        elif outcomes is not None:
            for outcome, part in zip(outcomes, result, strict=True):
                self.note(outcome, part)

    def note_plain(self, result: Any, seen: Sequence[Operand], zero: bool = False) -> Any:
        """Tag the result of a call on tensors without a type: constant if all of them are, else without a type.

        zero: it is zero everywhere.
        """
        tag = self._plain(seen, zero) if seen else UNKNOWN
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, Tensor):
                write(tensor, constant(tag.layout, fresh) if (fresh := kept_by(seen, tensor)) is not None else tag)
        return Parts(result) if type(result) is tuple else result

    def _plain(self, seen: Sequence[Operand], zero: bool) -> Tag:
        """The tag of what is made of tensors without a type: of constants alone it is one, V where one of them is."""
        if not all(each.tag.fresh is not None for each in seen):
            return UNKNOWN
        own = self._places.union(self.axes_of_lengths(), *[each.layout.varying for each in seen])
        layout = SpmdLayout(dict.fromkeys(sorted(own), V))
        return typed(layout) if self._places else constant(layout, Fresh.ZERO if zero else Fresh.CONSTANT)

    def note_written(self, result: Any, into: Any, seen: Sequence[Operand], zero: bool = False) -> Any:
        """Tag what a call on tensors without a type has written into, and the memory of it."""
        tag = self._plain(seen, zero)
        for tensor in tensors_of(into):
            write(tensor, tag)
            overwritten(tensor, tag)
        return result

    def problem(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], refused: Refused
    ) -> Problem:
        """What is said of a call that is refused."""
        operands = refused.operands or tuple(
            self.shown(each)
            for argument in (*args, *kwargs.values())
            for each in (argument if isinstance(argument, (list, tuple)) else (argument,))
            if isinstance(each, Tensor)
        )
        name = refused.call or getattr(func, "__name__", str(func))
        axes = dict.fromkeys(axis for each in operands for axis in each.layout) if refused.code is Code.NO_RULE else ()
        on = f" of a tensor typed on axis {', '.join(map(repr, axes))}" if axes else ""
        return Problem(
            where=source.place(),
            what=f"{refused.what}{on}, in {name}({', '.join(map(str, operands))})",
            why=refused.why,
            fix=refused.fix,
            code=refused.code,
        )

    def note_call(self, name: str, arguments: Sequence[Any]) -> None:
        """Add a call to the trace."""
        if self.trace is not None:
            mode = "" if torch.is_grad_enabled() else " without gradients"
            self.trace.append(Call(name + mode, tuple(static(arguments, self.shown)), source.line()))

    def seed_varies(self, axes: frozenset[str]) -> None:
        """The generator was seeded, with another number on each rank of these axes."""
        self.varying_seed = axes

    def forgets(self, refused: Refused) -> bool:
        """Whether all that is wrong is which dim is cut, where that is not followed."""
        return self.local and refused.cut is not None

    def axes_of_lengths(self) -> set[str]:
        """Those of the local lengths in a call, for which one device would have the lengths over all ranks; in a region
        they are numbers like any.
        """
        lengths = [] if self.local else [number for number in self.numbers if is_length(number)]
        return {axis for number in lengths for axis in self.axes_of(number)}

    def axes_of(self, number: Number) -> list[str]:
        """The axes of this mesh that a number is about."""
        return sorted(number.origin.axes & self.degree.keys())

    def _number(self, number: Number, seen: list[Operand]) -> Any:
        """A rank's place on an axis is V there; what else a number may be is for the rules to say."""
        if number.origin.source is Source.INDEX:
            layout = SpmdLayout(dict.fromkeys(self.axes_of(number), V))
            length = int(number) if isinstance(number, int) else None
            key = layout, "number", type(number), length
            found = self._answers.operands.get(key)
            if found is None:
                tag = Tag(layout, Fresh.CONSTANT)  # the same on all ranks of every other axis
                dtype = torch.int64 if isinstance(number, int) else torch.float32
                made = operand(tag, (), False, dtype, self.mesh, self.degree)
                found = self._answers.operands[key] = replace(made, length=length)
            seen.append(found)
            self._places.update(self.axes_of(number))
            return found
        self.numbers.append(number)
        return number

    def _enter(self, mesh: View) -> None:
        for axis, ranks in patterns(mesh).items():
            if self.axes.setdefault(axis, ranks) != ranks:
                raise SpmdTypeError(other_ranks(axis))
        self.mesh = mesh
        self.degree = {axis: group.size for axis, group in mesh.items()}
        self._answers = answers_on(mesh)

    def decide(self, rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any], target: Any, call: Applied) -> Any:
        """What is to be noted of what a call returns. Errors: `Refused` where its operands do not fit."""
        while True:
            try:
                results = inferred(rule, given, named, call)
                one = isinstance(results, Result)
                each: Sequence[Result] = (results,) if one else results
                if rule.writes:
                    targets: Sequence[Operand] = given[0] if isinstance(given[0], tuple) else given[:1]
                    each = [kept(rule.name, target, result) for target, result in zip(targets, each, strict=True)]
                elif target is not None:
                    targets = [self.operand(each) for each in tensors_of(target)]
                    each = [kept(rule.name, target, result) for target, result in zip(targets, each, strict=True)]
            except Refused as refused:
                if not self.forgets(refused):
                    raise
                given, named = (forgotten(each, refused, self.mesh, self.degree) for each in (given, named))
                continue
            if self._places:
                for result in filter(None, each):
                    self.demand_unplaced(rule.name, result.tag.layout)
                each = [result and replace(result, tag=self._own(result.tag)) for result in each]
            noted = tuple([None if result is None else self._noted(result) for result in each])
            return noted[0] if one else noted

    def _noted(self, result: Result) -> _Outcome:
        whole = result.whole
        forgotten = self.local and V in result.tag.layout.values()
        return _Outcome(result.tag, None if whole is None or forgotten else local_shape(whole, result.tag, self.mesh))

    def _takes_assumed(self, args: Any, kwargs: Mapping[str, Any]) -> bool:
        return any(read(x) is ASSUMED for x in tensors_of((args, tuple(kwargs.values()))))

    def _go_on(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a call that was refused, or that takes what came of one; nothing more is said of what it returns."""
        from_author = STATES.get(func)
        if from_author is not None:
            write(args[0], ASSUMED)
            with suppress(Refused):  # what is wrong with the statement itself was said
                return from_author(self, func, args, kwargs)
        result = func(*grounded(args), **grounded(kwargs))
        for x in tensors_of(result):
            write(x, ASSUMED)
        return result

    def shown(self, x: Tensor) -> Operand:
        """What an error says of `x`."""
        try:
            return self.operand(x)
        except (Refused, SpmdTypeError):  # its layout does not fit its shape: that is what is refused
            tag = read(x)
            return Operand(tag, tuple(x.shape), tuple(x.shape), False, x.dtype, tag.layout, self.degree)


STATES: Final[dict[Any, Callable[..., Any]]] = {}
"""Calls by which the author states a type: after an error they are believed."""


def _unruled(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A function without a rule may take no tensor that has a type."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__", "__delete__"):
        return func(*args, **kwargs)
    rule = aten_rule(func)
    if rule is not None:
        RULES[func] = rule
        return rule(check, func, args, kwargs)
    seen: list[Operand] = []
    check.seen_by_rules((*args, *kwargs.values()), seen)
    if any(each.known and each.tag.fresh is None for each in seen):
        raise no_rule(name)
    return check.note_plain(func(*args, **kwargs), seen)
