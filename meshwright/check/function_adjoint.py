"""Whether the backward of a Function is the adjoint of its forward, over all ranks that take part.

Each rank runs it, on values of its own where its type says that the ranks hold other values. Whatever a small step of
an argument changes the outputs by, held against random gradients of the outputs and added up over the ranks, is what
backward says of that step: <g, J v> = <J' g, v>, in which what is R or P counts once a rank and what is I once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor

from meshwright.check.function_call import Call, forward, fresh, knows_rank, once
from meshwright.check.function_collectives import Untried
from meshwright.check.function_ranks import Ranks, axes_used, drawn, held, ranks_of, trial, varying
from meshwright.check.refusal import Refused
from meshwright.check.tag import read
from meshwright.codes import Code
from meshwright.comm.view import View
from meshwright.types.kinds import I, P, R
from meshwright.types.layout import SpmdLayout

_LARGEST: Final = 100_000
_LARGEST_MADE_UP: Final = 2_000_000


@dataclass(frozen=True)
class _Manner:
    """double: in float64, whatever the dtypes; step: relative to the size of an argument's values; eps: the relative
    rounding of what backward returns; limit: up to which part of a derivative its error may reach for a verdict.
    """

    double: bool
    step: float
    eps: float
    limit: float


@dataclass
class _Sample:
    """What one rank has seen. outputs, seeds: the tensors that have a gradient, and random gradients of them.

    ahead: argument -> by how much of its direction the outputs change, for one step and for two. ways: argument -> its
    direction. gradients: argument -> what backward returns for it.
    """

    outputs: list[Tensor] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    seeds: list[Tensor] = field(default_factory=list)
    ahead: dict[int, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)
    ways: dict[int, Tensor] = field(default_factory=dict)
    gradients: dict[int, Tensor | None] = field(default_factory=dict)
    alike: bool = True


def untried(mesh: View, cls: Any, args: tuple[Any, ...], layouts: Sequence[SpmdLayout]) -> str:
    """Hold backward against forward; why that was not possible, "" where it was.

    Errors: `Refused` where they do not fit together.
    """
    call = Call(cls, args, layouts)
    generator = torch.default_generator.get_state()
    try:
        with trial(), torch._C.DisableTorchFunction(), torch.enable_grad():
            return _tried(mesh, call)
    except Untried as reason:
        return str(reason)
    finally:
        torch.default_generator.set_state(generator)


def _tried(mesh: View, call: Call) -> str:
    tensors = [x for x in call.args if isinstance(x, Tensor)]
    made_up = any(x.is_meta for x in tensors)
    most = _LARGEST_MADE_UP if made_up else _LARGEST
    if any(x.numel() > most or type(x) not in (Tensor, torch.nn.Parameter) for x in tensors):
        return "its tensors have no values, or very many"
    if made_up and not all(x.is_floating_point() for x in tensors):
        return "its tensors have no values, or very many"
    if knows_rank(call):
        return "it is given a number that depends on the rank"
    if any(x.is_complex() for x in tensors):
        return "its numbers are complex"
    generator = torch.default_generator.get_state()
    used = axes_used(mesh, lambda: once(call))
    ranks = ranks_of(mesh, [axis for axis in mesh.degree if axis in used or _made_alike(call, axis)])
    if ranks.degree and not torch.equal(generator, torch.default_generator.get_state()):
        return "its ranks draw random numbers"
    for layout in [*(read(call.args[n]).layout for n in call.wanted), *call.layouts]:
        unsaid = [axis for axis in ranks.degree if axis not in layout]
        if unsaid:
            return f"it runs over axis {unsaid[0]!r}, of which a type says nothing"
    eps = max(torch.finfo(x.dtype).eps for x in tensors if x.is_floating_point())
    manners = (
        _Manner(True, 1e-5, 1e-7, 0.01),
        _Manner(True, 3e-3, 1e-6, 0.01),  # where something computes in lower precision all the same
        *([] if made_up else [_Manner(False, max(eps ** (1 / 3), 3e-3), eps, 0.3), _Manner(False, 0.1, 1e-2, 0.3)]),
    )
    reason = ""
    for manner in manners:
        try:
            samples = ranks.run(manner.double, partial(_sampled, call, manner))
        except Untried as error:
            reason = str(error)
            continue
        reason = _verdict(call, ranks, manner, samples, manner in (manners[1:] if made_up else manners[2:]))
        if not reason:
            return ""
    return reason


def _made_alike(call: Call, axis: str) -> bool:
    """Whether something is to be the same on every rank of an axis, beside what is not."""
    given = [read(x).layout.get(axis) for x in call.args if isinstance(x, Tensor)]
    wanted = [read(call.args[n]).layout.get(axis) for n in call.wanted]
    outputs = [layout.get(axis) for layout in call.layouts]
    forward = any(kind not in (R, I, None) for kind in given)
    backward = forward or any(kind not in (I, P, None) for kind in outputs)
    return (forward and any(kind in (R, I) for kind in outputs)) or (
        backward and any(kind in (I, P) for kind in wanted)
    )


def _sampled(call: Call, manner: _Manner, place: Mapping[str, int]) -> _Sample:
    generator = torch.default_generator.get_state()
    wanted = call.wanted
    base = list(call.args)
    for n, x in enumerate(call.args):
        if isinstance(x, Tensor):
            value = held(x, n in wanted, read(x).layout, place, n)
            base[n] = value if manner.double or not x.is_floating_point() else value.to(x.dtype)

    def run(values: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        torch.default_generator.set_state(generator)  # one rank draws the same again
        return forward(call, fresh(call, values))

    found = _Sample()
    outputs, back = run(base)
    again, _ = run(base)
    results = [n for n, y in enumerate(outputs) if isinstance(y, Tensor)]
    found.kept = [at for at, n in enumerate(results) if outputs[n].requires_grad and outputs[n].is_floating_point()]
    kept = [results[at] for at in found.kept]
    found.outputs = [outputs[n].detach().double() for n in kept]
    found.alike = all(torch.equal(outputs[n], again[n]) or bool(outputs[n].isnan().any()) for n in kept)
    seeds: list[Any] = [torch.zeros_like(y) if isinstance(y, Tensor) else None for y in outputs]
    for at, n in zip(found.kept, kept, strict=True):
        layout = call.layouts[at].dual
        drawn_ = drawn(outputs[n].shape, outputs[n], 1, at, *varying(layout, place))
        seeds[n] = drawn_.to(outputs[n].dtype)
        found.seeds.append(seeds[n].double())
    for n in wanted:
        size = float(base[n].double().square().mean().sqrt()) if base[n].numel() else 0.0
        way = drawn(base[n].shape, base[n], 2, n, *varying(read(call.args[n]).layout, place)) * (size or 1.0)

        def moved(step: float, n: int = n, way: Tensor = way) -> tuple[Tensor, list[Tensor]]:
            there = base[n].detach().double() + step * way
            values = [*base]
            values[n] = there.to(base[n].dtype)
            outputs, _ = run(values)
            return values[n].double(), [outputs[each].detach().double() for each in kept]

        changes = []
        for step in (manner.step, 2 * manner.step):
            (ahead, after), (behind, before) = moved(step), moved(-step)
            changes.append([(b - a) / (2 * step) for a, b in zip(before, after, strict=True)])
            if step == manner.step:
                found.ways[n] = (ahead - behind) / (2 * step)  # as far as it is not rounded away
        found.ahead[n] = changes[0], changes[1]
    gradients = back(seeds)
    for n in wanted:
        gradient = gradients[n] if n < len(gradients) else None
        found.gradients[n] = None if gradient is None else gradient.double().sum_to_size(base[n].shape)
    return found


def _verdict(call: Call, ranks: Ranks, manner: _Manner, samples: Sequence[_Sample], coarse: bool) -> str:
    """Why the samples say nothing, "" where they say that all is right.

    coarse: steps are long enough to change the outputs of whatever does not round on purpose.

    Errors: `Refused` where they say that it is not.
    """
    if not all(sample.alike for sample in samples):
        return "its forward draws random numbers"
    if not samples[0].kept:
        return "no output of it has a gradient"
    for at, number in enumerate(samples[0].kept):
        outputs = [sample.outputs[at] for sample in samples]
        _demand_equal(call, ranks, manner, f"output {number} of forward", call.layouts[number], outputs)
    worst = ""
    for n in call.wanted:
        layout = read(call.args[n]).layout
        gradients = [sample.gradients[n] for sample in samples]
        if all(each is not None for each in gradients):
            name = f"the gradient that backward returns for {call.name(n)}"
            _demand_equal(call, ranks, manner, name, layout.dual, gradients)  # type: ignore[arg-type]
        worst = _compared(call, ranks, manner, samples, n, coarse) or worst
    return worst


def _compared(call: Call, ranks: Ranks, manner: _Manner, samples: Sequence[_Sample], n: int, coarse: bool) -> str:
    forward = backward = drift = noise = size = told = value = 0.0
    for sample in samples:
        for at, number in enumerate(sample.kept):
            once = _once_of(call.layouts[number], ranks)
            seed, one, two = sample.seeds[at], sample.ahead[n][0][at], sample.ahead[n][1][at]
            forward += once * float((one * seed).sum())
            drift += once * float(((two - one) * seed).sum())
            noise += once * float(((two - one) * seed).square().sum())
            size += once * float((one * seed).square().sum())
            value += once * float((sample.outputs[at] * seed).square().sum())
        gradient = sample.gradients[n]
        if gradient is not None:
            once = _once_of(read(call.args[n]).layout, ranks)
            backward += once * float((gradient * sample.ways[n]).sum())
            told += once * float((gradient * sample.ways[n]).square().sum())
    if not math.isfinite(forward + backward + noise):
        return "its values are not finite"
    usual = max(math.sqrt(size), math.sqrt(told), 1e-4 * math.sqrt(value))
    error = 10 * max(abs(drift), math.sqrt(noise)) + 10 * manner.eps * usual
    if error > manner.limit * usual or (told and not size and not coarse):
        return "it computes with so few digits that a small step drowns in rounding"
    if abs(forward - backward) <= error:
        return ""
    on = f", on {len(samples)} simulated ranks of {', '.join(map(repr, ranks.degree))}" if ranks.degree else ""
    raise _wrong(
        call,
        f"backward of {call.cls.__name__} says that a small step of {call.name(n)} changes its output by "
        f"{backward:.6g} along a random direction, and it changes by {forward:.6g}{on}",
        "the gradient of a Function is the transpose of what its forward does",
        "mend backward; or, of an estimator that is meant to differ: register_autograd_function(adjoint=False)",
    )


def _once_of(layout: SpmdLayout, ranks: Ranks) -> float:
    """How much a rank's copy counts: what is I is one value, and its gradient is that of the one."""
    return 1 / math.prod(size for axis, size in ranks.degree.items() if layout.get(axis) is I)


def _demand_equal(
    call: Call, ranks: Ranks, manner: _Manner, what: str, layout: SpmdLayout, values: Sequence[Tensor]
) -> None:
    """What is R or I is the same on every rank.

    Errors: `Refused`.
    """
    places = ranks.places
    for (first, x), (second, y) in combinations(zip(places, values, strict=True), 2):
        apart = [axis for axis in first if first[axis] != second[axis]]
        if len(apart) != 1 or layout.get(apart[0]) not in (R, I):
            continue
        near = max(float(x.abs().max()), float(y.abs().max())) * 10 * manner.eps if x.numel() and y.numel() else 0.0
        if x.shape == y.shape and torch.allclose(x, y, rtol=0.0, atol=near, equal_nan=True):
            continue
        raise _wrong(
            call,
            f"{what} of {call.cls.__name__} is {layout[apart[0]]!r} on axis {apart[0]!r}, and simulated ranks find "
            "different values of it",
            "what is R or I is the same on every rank",
            f"reduce it over {apart[0]!r}, or gather it; or declare what the ranks hold",
        )


def _wrong(call: Call, what: str, why: str, fix: str) -> Refused:
    refused = Refused(what, why, fix, code=Code.FUNCTION)
    refused.call = f"{call.cls.__name__}.apply"
    return refused
