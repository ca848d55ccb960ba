"""From a model on meta to one rank's: ties and freezes stay, and nothing is left undeclared."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.core.init import Computed, Constant
from meshwright.core.module import Module
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import ConfigError
from meshwright.models.layers import Embedding, Linear
from meshwright.train.assemble import local_backend
from meshwright.types.kinds import I, P, R, S
from meshwright.types.planner import Transition
from tests.core.toys import holding
from tests.denotation import denoted
from tests.ranks import Member, alone, on_meta, on_ranks, refused

TP = ParallelismDims(tp=2)
DATA = {"dp": R, "cp": R}
ROWS, WHOLE, SAME = {**DATA, "tp": S(0)}, {**DATA, "tp": R}, {**DATA, "tp": I}


class Pair(Module):
    """Two parts, and what `tie` makes one."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        first: Module.Config
        second: Module.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.first, self.second = config.first.build(), config.second.build()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.second(self.first(tokens))


def table(layout=ROWS):
    return Embedding.Config(vocab=4, dim=6, sharding_config=ShardingConfig(state_shardings={"weight": layout}))


def head(layout=ROWS):
    return Linear.Config(
        in_features=6, out_features=4, sharding_config=ShardingConfig(state_shardings={"weight": layout})
    )


def tie(model):
    model.second.weight = model.first.weight


def freeze(*names):
    def apply(model):
        for name in names:
            model.get_parameter(name).requires_grad_(False)

    return apply


class TestWhatIsRefused:
    def test_states_without_a_declaration(self):
        config = Pair.Config(first=table(), second=Linear.Config(in_features=6, out_features=4))
        (problem,) = refused(config, TP)
        assert problem.where == "second.sharding_config"
        assert problem.what == "Linear holds weight and declares no sharding"
        assert "state_shardings" in problem.fix
        assert refused(config, ParallelismDims()) == ()  # on one device there is nothing to declare

    def test_a_part_that_is_no_module_of_ours_too(self):
        def replace(model):
            model.second = nn.Linear(6, 4, device="meta")

        config = Pair.Config(first=table(), second=head())
        (problem,) = refused(config, TP, before=replace)
        assert problem.what == "Linear holds weight, bias and declares no sharding"

    def test_states_without_first_values(self):
        class Silent(Module):
            def __init__(self, config):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(2))
                self.register_buffer("count", torch.empty(2))

        weight, count = refused(Pair.Config(first=table(), second=Silent.Config()), ParallelismDims())
        assert (weight.where, count.where) == ("second.weight", "second.count")
        assert weight.what == "Silent says nothing of its first values"
        assert weight.fix == "initializers() returns an Init for 'weight'"

    @pytest.mark.parametrize("other", [WHOLE, SAME, {**DATA, "tp": S(1)}])
    def test_tied_states_that_are_declared_apart(self, other):
        config = Pair.Config(first=table(), second=head(other))
        (problem,) = refused(config, TP, before=tie)
        assert problem.where == "second.weight"
        assert "tied to first.weight" in problem.what
        assert refused(config, ParallelismDims(), before=tie) == ()
        assert refused(config, TP) == ()  # untied, each lies as it likes

    def test_everything_in_every_module_at_once(self):
        config = Pair.Config(first=table({**DATA, "tp": S(5)}), second=Linear.Config(in_features=6, out_features=4))
        assert [problem.where.partition(".")[0] for problem in refused(config, TP)] == ["first", "second"]

    def test_nothing_is_changed_by_a_model_that_is_refused(self):
        module = on_meta(Pair.Config(first=table(), second=head({**DATA, "tp": S(7)})))
        before = dict(module.named_parameters())
        with pytest.raises(ConfigError):
            parallelize(module, local_backend(TP, 0, shape_view(TP, 0)))
        assert all(param is before[name] for name, param in module.named_parameters())


class TestStates:
    CONFIG = holding(
        {"rows": (4, 6), "both": (8, 2), "whole": (3,)},
        buffers={"columns": (2, 4), "one": ()},
        state_shardings={
            "rows": ROWS,
            "both": {"dp": S(0), "cp": R, "tp": S(0)},
            "whole": SAME,
            "columns": {**DATA, "tp": S(1)},
            "one": WHOLE,
        },
    )
    DIMS = ParallelismDims(dp_shard=2, tp=2)

    def test_on_meta_each_is_its_rank_s_part(self):
        module = on_meta(self.CONFIG)
        states = parallelize(module, local_backend(self.DIMS, 0, shape_view(self.DIMS, 0)))
        held = {name: tuple(state.shape) for name, state in module.state_dict().items()}
        assert held == {"rows": (2, 6), "both": (2, 2), "whole": (3,), "columns": (2, 2), "one": ()}
        assert all(state.is_meta for state in module.state_dict().values())
        assert {name: info.shape for name, info in states.items()} == {
            "rows": (4, 6), "both": (8, 2), "whole": (3,), "columns": (2, 4), "one": ()
        }  # fmt: skip

    def test_materialised_the_parts_are_the_whole(self):
        def program(member: Member):
            return {name: state.detach() for name, state in member.module.state_dict().items()}

        whole = alone(self.CONFIG, program)
        parts = on_ranks(self.DIMS, self.CONFIG, program)
        for name, layout in self.CONFIG.sharding_config.state_shardings.items():
            layout = layout.only(lambda axis: axis != "cp")
            assert torch.equal(denoted(layout, [part[name] for part in parts], self.DIMS), whole[name]), name
            assert torch.equal(whole[name], torch.arange(whole[name].numel()).view(whole[name].shape).float())

    def test_a_sum_over_ranks_starts_with_all_of_it_on_one(self):
        config = holding(buffers={"count": (3,)}, state_shardings={"count": {**DATA, "tp": P}})
        parts = on_ranks(TP, config, lambda member: member.module.count)
        assert denoted({"tp": P}, parts, TP).tolist() == [0.0, 1.0, 2.0]

    def test_buffers_stay_what_they_were(self):
        """Saved or not saved, and no parameter."""

        def unsaved(module):
            module.register_buffer("columns", module.columns, persistent=False)

        def program(member: Member):
            return sorted(member.module.state_dict()), [name for name, _ in member.module.named_buffers()]

        saved, every = alone(self.CONFIG, program, before=unsaved)
        assert "columns" not in saved
        assert sorted(every) == ["columns", "one"]

    def test_names_come_in_the_models_order(self):
        names = [name for name, _ in on_meta(self.CONFIG).named_parameters()]
        assert alone(self.CONFIG, lambda member: [name for name, _ in member.module.named_parameters()]) == names


class TestTies:
    @pytest.mark.parametrize("dims", [ParallelismDims(), TP, ParallelismDims(dp_shard=2, tp=2)], ids=str)
    def test_what_is_tied_between_modules_stays_one(self, dims):
        def program(member: Member):
            module = member.module
            return module.first.weight is module.second.weight, sorted(member.states), not module.first.weight.is_meta

        config = Pair.Config(first=table(), second=head())
        assert on_ranks(dims, config, program, before=tie) == [(True, ["first.weight"], True)] * dims.world

    def test_so_does_what_is_tied_within_one(self):
        class Twice(Module):
            initial = {"a": Computed(lambda index: index.float()), "b": Constant(9.0)}  # noqa: RUF012

            def __init__(self, config):
                super().__init__()
                self.a = nn.Parameter(torch.empty(4))
                self.b = self.a

        layouts = ShardingConfig(state_shardings={"a": ROWS, "b": ROWS})
        found = on_ranks(TP, Twice.Config(sharding_config=layouts), lambda member: (member.module.a, member.module.b))
        for rank, (a, b) in enumerate(found):
            assert a is b
            assert a.tolist() == [2.0 * rank, 2.0 * rank + 1]
        apart = ShardingConfig(state_shardings={"a": ROWS, "b": WHOLE})
        (problem,) = refused(Twice.Config(sharding_config=apart), TP)
        assert "tied to a" in problem.what

    def test_so_do_buffers(self):
        def tied(model):
            model.second.count = model.first.count

        part = holding(buffers={"count": (4,)}, state_shardings={"count": ROWS})
        found = on_ranks(
            TP,
            Pair.Config(first=part, second=part),
            lambda member: (member.module.first.count, member.module.second.count),
            before=tied,
        )
        for rank, (first, second) in enumerate(found):
            assert first is second
            assert first.tolist() == [2.0 * rank, 2.0 * rank + 1]

    def test_a_module_under_two_names_is_one(self):
        def shared(model):
            model.second = model.first

        part = holding({"weight": (4,)}, state_shardings={"weight": Transition(WHOLE, ROWS)})
        config = Pair.Config(first=part, second=part)

        def program(member: Member):
            return member.module.first is member.module.second, len(member.module.first.weight)

        assert on_ranks(TP, config, program, before=shared) == [(True, 4)] * 2

    def test_a_tied_gradient_is_of_both_uses(self):
        def program(member: Member):
            loss = member.module(torch.tensor([1])).square().sum()
            loss.backward()
            return member.module.first.weight.grad

        config = Pair.Config(first=table(), second=head())
        tied = alone(config, program, before=tie)
        assert (tied.abs().sum(1) > 0).all()  # the embedding's use alone reaches row 1 only


class TestFrozen:
    @pytest.mark.parametrize("dims", [ParallelismDims(), TP])
    def test_what_is_frozen_stays_frozen(self, dims):
        def program(member: Member):
            frozen = {name for name, param in member.module.named_parameters() if not param.requires_grad}
            return frozen, {name for name, info in member.states.items() if not info.trained}

        config = Pair.Config(first=table(), second=head())
        expected = ({"first.weight"}, {"first.weight"})
        assert on_ranks(dims, config, program, before=freeze("first.weight")) == [expected] * dims.world

    def test_frozen_and_tied(self):
        def both(model):
            tie(model)
            freeze("first.weight")(model)

        def program(member: Member):
            module = member.module
            return module.first.weight is module.second.weight, module.second.weight.requires_grad

        config = Pair.Config(first=table(), second=head())
        assert on_ranks(TP, config, program, before=both) == [(True, False)] * 2
