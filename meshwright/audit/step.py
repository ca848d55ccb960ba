"""One rank's training step on shapes, every call of it judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.audit import where
from meshwright.audit.audited import Audited
from meshwright.audit.boundary import Lost
from meshwright.audit.condense import condensed
from meshwright.audit.meter import Meter, metered_view
from meshwright.audit.recover import Recover
from meshwright.audit.repair import repair
from meshwright.audit.storage import AsStored
from meshwright.audit.whole import Calls
from meshwright.backends.declared import apart, of_experts
from meshwright.backends.parallelize import States, parallelize
from meshwright.check import layout_of, no_typecheck, typecheck
from meshwright.check.report import Trusted
from meshwright.comm.collectives import all_reduce
from meshwright.comm.declare import assert_type
from meshwright.comm.grid import WORLD, ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.errors import MeshwrightError, Problem, SpmdTypeError
from meshwright.train.config import TrainConfig
from meshwright.train.gradients import Gradients, clip
from meshwright.train.loss import fields_of, roots, token_losses
from meshwright.train.optimizer import adamw
from meshwright.train.preflight import unplaceable
from meshwright.types.kinds import P, R


class RankStep:
    """One rank of a run, on meta. passed: the global shapes at every boundary; tell: called with each problem.

    Errors: `ConfigError` where a state has no first values, is tied and declared apart, or cannot be stored so.
    """

    def __init__(
        self,
        config: TrainConfig,
        dims: ParallelismDims,
        rank: int,
        passed: Calls,
        tell: Callable[[Problem], None],
    ) -> None:
        self.config = config
        self.meter = Meter()
        self.condensed = condensed(config)
        self.model, self.loss = self.condensed.model, self.condensed.loss
        self._tell = tell
        unjudged: set[str] = set()
        for root in roots(self.model, self.loss):
            problems, found = repair(root, dims, dims.compute)
            unjudged |= found
            for problem in problems:
                self.tell(problem)
        view = metered_view(dims, rank, self.meter, {**apart(dims), **of_experts(dims)}, dims.compute)
        self.audit = Audited(
            dims,
            view,
            AsStored(dims, rank),
            shape_view(dims, rank, apart(dims)),
            shape_view(dims, rank, of_experts(dims)),
            passed=passed,
            unjudged=unjudged,
            tell=self.tell,
            meter=self.meter,
        )
        self.states: States = parallelize(self.model, self.audit)
        if self.loss is not None:
            parallelize(self.loss, self.audit)
        for root in roots(self.model, self.loss):
            for problem in unplaceable(config, root):
                self.tell(problem)
        self.audit.watch(self.model)
        self.world = shape_view(dims, rank, WORLD)["world"]

    def believed(self) -> Iterator[Trusted]:
        """What is taken on trust, at each of its places in the run."""
        for each in self.audit.believed:
            yield from (replace(each, where=at) for at in self.condensed.places(each.where))

    def tell(self, problem: Problem) -> None:
        """Tell a problem at each of its places in the run."""
        for each in self.condensed.spread(problem):
            self._tell(each)

    def judge(self, rows: int, length: int) -> bool:
        """Forward, loss, backward, sums of gradients, clipping and update; whether it came to the end.

        rows, length: of the rank's part of a micro-batch.
        """
        fields = (torch.empty(rows, length, dtype=torch.int64, device="meta") for _ in range(fields_of(self.model)))
        with self.audit.scope(), typecheck() as report, Recover(self.audit):
            self.audit.report = report
            try:
                self._state_types()
                loss, charge = token_losses(self.model, self.loss, *fields)
                self._update(loss if charge is None else loss + charge)
            except Lost:
                return False
            except SpmdTypeError as error:
                for problem in error.problems:
                    self.tell(replace(problem, where=f"step: {where.of_error(error)}"))
                return False
            except MeshwrightError:
                raise
            except Exception as error:
                what = f"the step fails on a rank's shapes: {type(error).__name__}: {error}"
                why = "forward was right so far as it was followed; what it computes has no such backward or update"
                self.tell(Problem(where=f"step: {where.of_error(error)}", what=what, why=why))
                return False
        return True

    def _state_types(self) -> None:
        for name, param in (*self.model.named_parameters(), *self.model.named_buffers()):
            self.audit.states(param, self.states[name].layout)

    def _update(self, total: Tensor) -> None:
        on = dict.fromkeys(self.audit.stated, R)
        valid = assert_type(torch.empty((), dtype=torch.int64, device="meta"), on)
        (total / valid.clamp(min=1)).backward()
        gradients = Gradients(self.model, self.audit, self.states, self.world)
        with torch.no_grad():
            grads = [self._summed(each.param, each.owed) for each in gradients.trained]
            with no_typecheck():
                norm = gradients.total_norm(grads)
        for mesh in (self.audit.stated, self.audit.sparse):
            own = [each.param for each in gradients.trained if self.audit.mesh_of(layout_of(each.param)) is mesh]
            with set_current_mesh(mesh):
                self._clip_and_step(own, assert_type(norm.clone(), dict.fromkeys(mesh, R)))

    def _clip_and_step(self, params: Sequence[torch.nn.Parameter], norm: Tensor) -> None:
        """Of parameters whose types are on one mesh."""
        with torch.no_grad():
            clip([param.grad for param in params if param.grad is not None], norm, self.config.training.max_norm)
        optimizer = adamw(params, self.config.optimizer, fused=False)
        for group in optimizer.param_groups:
            for param in group["params"]:
                optimizer.state[param] = _moments(param)
        optimizer.step()

    def _summed(self, param: torch.nn.Parameter, owed: tuple[str, ...]) -> Tensor:
        """The gradient after the sums that are owed; nothing of it may be a sum over ranks any more."""
        layout = dict.fromkeys(owed, R)
        with set_current_mesh(self.audit.mesh_of(layout_of(param))):
            if param.grad is None:
                param.grad = assert_type(torch.zeros_like(param), {a: k.dual for a, k in layout_of(param).items()})
            for axis in self.audit.on(layout):
                param.grad = all_reduce(param.grad, axis, src=P, dst=R)
        return param.grad


def _moments(param: Tensor) -> dict[str, Tensor]:
    """The optimizer's state of a parameter lies as the parameter does."""
    layout = layout_of(param)
    means = {name: assert_type(torch.zeros_like(param), layout) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros(()), **means}
