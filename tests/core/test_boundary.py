"""A module's declared changes of layout happen at its boundary, forward and backward, and nowhere else."""

from __future__ import annotations

import copy
from collections import namedtuple

import pytest
import torch

from meshwright.comm.grid import ParallelismDims
from meshwright.core.sharding import ShardingConfig
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S
from meshwright.types.planner import Transition
from tests.core.toys import Biased, calling
from tests.denotation import denoted, local, sample
from tests.ranks import alone, on_ranks

TWO = ParallelismDims(tp=2)
REST = {"dp": R, "cp": R}
SHARDED, WHOLE = {**REST, "tp": S(0)}, {**REST, "tp": R}
Pair = namedtuple("Pair", "first second")


def on_tp(layout):
    return {"tp": layout["tp"]}


class TestInputs:
    """A module that takes x and y sharded and wants them whole."""

    @staticmethod
    def forward(self, x, y=None, *rest, scale=None):
        self.saw = [None if value is None else tuple(value.shape) for value in (x, y, *rest, scale)]
        return x

    def config(self):
        return calling(
            self.forward,
            in_src_shardings={"x": SHARDED, "y": SHARDED, "scale": SHARDED},
            in_dst_shardings={"x": WHOLE, "y": WHOLE, "scale": WHOLE},
        )

    @pytest.mark.parametrize(
        ("args", "names", "saw"),
        [
            (1, (), [4, None, None]),
            (2, (), [4, 4, None]),
            (1, ("y",), [4, 4, None]),
            (0, ("x",), [4, None, None]),
            (0, ("y", "x"), [4, 4, None]),
            (1, ("scale",), [4, None, 4]),
            (2, ("scale",), [4, 4, 4]),
            (3, ("scale",), [4, 4, 2, 4]),  # what is collected in *rest is not declared, and stays as it is
            (4, (), [4, 4, 2, 2, None]),
        ],
    )
    def test_an_argument_crosses_however_it_is_given(self, args, names, saw):
        def program(member):
            part = torch.ones(2)
            member.module(*[part] * args, **dict.fromkeys(names, part))
            return member.module.saw

        expected = [None if length is None else (length,) for length in saw]
        assert on_ranks(TWO, self.config(), program) == [expected] * 2

    @pytest.mark.parametrize("given", [(None,), ()])
    def test_an_optional_argument_may_be_left_out_or_none(self, given):
        def program(member):
            return member.module(torch.ones(2), *given).shape, member.module.saw

        assert on_ranks(TWO, self.config(), program) == [((4,), [(4,), None, None])] * 2

    @pytest.mark.parametrize("wrong", [3.0, [torch.ones(2)], "x"])
    @pytest.mark.parametrize("named", [True, False])
    def test_what_is_no_tensor_is_refused_by_name(self, wrong, named):
        def program(member):
            return member.module(**{"x": wrong}) if named else member.module(wrong)

        with pytest.raises(SpmdTypeError) as error:
            on_ranks(TWO, self.config(), program)
        (problem,) = error.value.problems
        assert problem.where == "Called.x"
        assert f"it is a {type(wrong).__name__}" in problem.what
        assert "in_src_shardings['x']" in problem.fix

    def test_missing_arguments_are_pythons_own_error(self):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            on_ranks(TWO, self.config(), lambda member: member.module())

    def test_the_gradient_crosses_back(self):
        """x is gathered to R, each rank adds its own part: the parts are summed and cut."""

        def program(member):
            x = torch.ones(2, requires_grad=True)
            (member.module(x) * torch.arange(4.0) * (member.rank + 1)).sum().backward()
            return x.grad.tolist()

        assert on_ranks(TWO, self.config(), program) == [[0.0, 3.0], [6.0, 9.0]]


class TestStates:
    """x [1,1] over tp 2, row-parallel weights of one, bias 10: what is added by one rank only."""

    @staticmethod
    def config(rest=R, inputs=2, outputs=1, bias=10.0):
        sharding = ShardingConfig(
            state_shardings={
                "weight": {**REST, "tp": S(1)},
                "bias": Transition({**REST, "tp": rest}, {**REST, "tp": P}),
            },
            in_src_shardings={"x": {**REST, "tp": S(1)}},
            out_src_shardings={**REST, "tp": P},
            out_dst_shardings={**REST, "tp": I},
        )
        return Biased.Config(inputs=inputs, outputs=outputs, bias=bias, sharding_config=sharding)

    @pytest.mark.parametrize("rest", [R, I])
    def test_a_bias_is_added_once(self, rest):
        def program(member):
            y = member.module(torch.ones(1, 1))
            y.sum().backward()
            member.gradients().finish()
            return y.item(), member.module.bias.grad.item(), member.module.weight.grad.item()

        assert on_ranks(TWO, self.config(rest), program) == [(12.0, 1.0, 1.0)] * 2
        assert alone(self.config(rest), lambda member: member.module(torch.ones(1, 2)).item()) == 12.0

    @pytest.mark.parametrize("rest", [R, I])
    @pytest.mark.parametrize("ranks", [2, 4])
    @pytest.mark.parametrize("outputs", [1, 3])
    def test_values_and_gradients_are_those_of_one_device(self, rest, ranks, outputs):
        config = self.config(rest, inputs=4, outputs=outputs, bias=3.0)
        x, weight = sample((5, 4), 1).float(), sample((5, outputs), 2).float()

        def program(member):
            mine = x if member.view["tp"].size == 1 else x.chunk(ranks, 1)[member.rank]
            y = member.module(mine)
            (y * weight).sum().backward()
            member.gradients().finish()
            return [y.detach(), member.module.weight.grad, member.module.bias.grad]

        parts = on_ranks(ParallelismDims(tp=ranks), config, program)
        whole = alone(config, program)
        for part, layout, true in zip(zip(*parts, strict=True), (I, S(1), I), whole, strict=True):
            assert torch.equal(denoted({"tp": layout}, part, ParallelismDims(tp=ranks)), true)

    @pytest.mark.parametrize("copied", [False, True])
    def test_a_copy_crosses_its_own_tensors(self, copied):
        def program(member):
            twin = copy.deepcopy(member.module)
            with torch.no_grad():
                twin.bias.fill_(100.0)
            return (twin if copied else member.module)(torch.ones(1, 1)).item()

        assert on_ranks(TWO, self.config(), program) == [102.0 if copied else 12.0] * 2

    def test_a_copys_gradients_are_its_own(self):
        def program(member):
            twin = copy.deepcopy(member.module)
            twin(torch.ones(1, 1)).sum().backward()
            return member.module.bias.grad, twin.bias.grad is not None

        assert on_ranks(TWO, self.config(), program) == [(None, True)] * 2

    def test_after_an_error_the_state_is_what_it_was(self):
        def program(member):
            with pytest.raises(RuntimeError, match="shape"):
                member.module(torch.ones(1, 7))
            return sorted({"weight", "bias"} & member.module.__dict__.keys()), member.module.bias.item()

        assert on_ranks(TWO, self.config(), program) == [([], 10.0)] * 2

    def test_an_error_of_a_crossing_leaves_nothing_behind(self):
        """The second state cannot cross: the first is put back."""
        config = self.config()
        config.sharding_config.state_shardings["weight"] = Transition({**REST, "tp": R}, {**REST, "tp": S(1)})
        config.sharding_config.state_shardings = dict(reversed(config.sharding_config.state_shardings.items()))

        def program(member):
            assert list(member.module.contract.states) == ["bias", "weight"]
            with torch.no_grad():
                member.module.weight.set_(torch.ones(1, 3))  # does not split over two ranks any more
            with pytest.raises(SpmdTypeError, match="does not split evenly"):
                member.module(torch.ones(1, 1))
            return sorted({"weight", "bias"} & member.module.__dict__.keys())

        assert on_ranks(TWO, config, program) == [[]] * 2

    def test_a_module_that_calls_itself_crosses_once_a_call(self):
        class Twice(Biased):
            def forward(self, x, again=True):
                inner = self(x, again=False) if again else 0.0
                return super().forward(x) + inner

        sharding = self.config().sharding_config
        sharding.out_dst_shardings = None
        config = Twice.Config(inputs=2, bias=10.0, sharding_config=sharding)

        def program(member):
            y = member.module(torch.ones(1, 1))
            y.sum().backward()
            member.gradients().finish()
            return member.view["tp"].all_reduce(y.detach()).item(), member.module.bias.grad.item()

        assert on_ranks(TWO, config, program) == [(24.0, 2.0)] * 2

    def test_a_state_that_is_not_there_needs_no_crossing(self):
        def program(member):
            member.module.bias = None
            return member.module(torch.ones(1, 1)).item()

        assert on_ranks(TWO, self.config(), program) == [2.0] * 2


class TestOutputs:
    """Outputs computed as parts of a sum."""

    PART, SUM = {**REST, "tp": P}, {**REST, "tp": I}

    def run(self, made, src, dst):
        config = calling(lambda self, x: made(x), out_src_shardings=src, out_dst_shardings=dst)
        return on_ranks(TWO, config, lambda member: member.module(torch.full((2,), member.rank + 1.0)))

    def test_one(self):
        assert [y.tolist() for y in self.run(lambda x: x, self.PART, self.SUM)] == [[3.0, 3.0]] * 2

    @pytest.mark.parametrize("made", [tuple, list, lambda pair: Pair(*pair)], ids=["tuple", "list", "namedtuple"])
    def test_several_are_handed_on_as_they_were_built(self, made):
        for first, second in self.run(lambda x: made((x, 2 * x)), (self.PART, self.PART), (self.SUM, self.SUM)):
            assert (first.tolist(), second.tolist()) == ([3.0, 3.0], [6.0, 6.0])
        (y, *_) = self.run(lambda x: made((x, x)), (self.PART, self.PART), (self.SUM, self.SUM))
        assert type(y) is type(made((1, 2)))

    def test_only_those_that_change_cross(self):
        for rank, (first, second) in enumerate(
            self.run(lambda x: (x, x), (self.PART, self.PART), (self.PART, self.SUM))
        ):
            assert first.tolist() == [rank + 1.0] * 2
            assert second.tolist() == [3.0] * 2

    @pytest.mark.parametrize("aux", [None, 7, "text", torch.ones(1)], ids=str)
    def test_what_is_declared_none_is_handed_on_as_it_is(self, aux):
        for y, kept in self.run(lambda x: (x, aux), (self.PART, None), (self.SUM, None)):
            assert y.tolist() == [3.0, 3.0]
            assert kept is aux

    def test_a_destination_that_is_left_out_is_the_source(self):
        for rank, (first, second) in enumerate(self.run(lambda x: (x, x), (self.PART, self.PART), (None, self.SUM))):
            assert (first.tolist(), second.tolist()) == ([rank + 1.0] * 2, [3.0] * 2)

    def test_dicts_and_trees_of_them(self):
        src, dst = (
            {"y": self.PART, "more": (self.PART, {"z": self.PART})},
            {"y": self.SUM, "more": (None, {"z": self.SUM})},
        )
        for rank, found in enumerate(self.run(lambda x: {"more": (x, {"z": x}), "y": x}, src, dst)):
            assert list(found) == ["more", "y"]
            assert found["y"].tolist() == found["more"][1]["z"].tolist() == [3.0, 3.0]
            assert found["more"][0].tolist() == [rank + 1.0] * 2

    @pytest.mark.parametrize(
        ("made", "says"),
        [
            (lambda x: x, "declared as a tuple of 2, but it is one tensor"),
            (lambda x: (x,), "declared as a tuple of 2, but it is a tuple of 1"),
            (lambda x: [x, x, x], "declared as a tuple of 2, but it is a list of 3"),
            (lambda x: {"y": x, "z": x}, "declared as a tuple of 2, but it is a dict of y, z"),
            (lambda x: None, "declared as a tuple of 2, but it is None"),
            (lambda x: (x, None), "but it is a NoneType"),
            (lambda x: (x, (x, x)), "but it is a tuple"),
            (lambda x: (x, 3.0), "but it is a float"),
        ],
    )
    def test_an_output_that_is_built_otherwise_is_refused(self, made, says):
        with pytest.raises(SpmdTypeError) as error:
            self.run(made, (self.PART, self.PART), (self.SUM, self.SUM))
        (problem,) = error.value.problems
        assert problem.where == "Called.sharding_config.out_src_shardings"
        assert says in problem.what
        assert problem.fix

    @pytest.mark.parametrize("wrong", [None, (1,), 2.0])
    def test_so_is_one_that_is_no_tensor(self, wrong):
        with pytest.raises(SpmdTypeError, match=f"it is a {type(wrong).__name__}"):
            self.run(lambda x: wrong, self.PART, self.SUM)

    def test_an_error_of_the_crossing_itself_is_not_one_of_structure(self):
        with pytest.raises(SpmdTypeError, match="does not split evenly"):
            self.run(lambda x: (x[:1], x), (self.PART, self.PART), ({**REST, "tp": S(0)}, None))


class TestIdentity:
    """Where nothing changes, nothing is there."""

    @pytest.mark.parametrize("dims", [TWO, ParallelismDims()])
    def test_forward_without_crossings_is_the_classs_own(self, dims):
        layout = {"dp": S(0), "cp": R, "tp": R}
        config = calling(
            lambda self, x: (x, x),
            in_src_shardings={"x": layout},
            in_dst_shardings={"x": layout},
            out_src_shardings=(layout, None),
            out_dst_shardings=(layout, None),
        )
        assert not any(on_ranks(dims, config, lambda member: "forward" in member.module.__dict__))

    def test_on_one_device_nothing_crosses_whatever_is_declared(self):
        def program(member):
            assert "forward" not in member.module.__dict__
            return member.module(torch.ones(1, 2)).item()

        assert alone(TestStates.config(), program) == 12.0

    def test_a_module_with_crossings_has_one_of_its_own(self):
        assert all(on_ranks(TWO, TestStates.config(), lambda member: "forward" in member.module.__dict__))


CHANGES = [(S(0), R), (S(0), S(1)), (R, S(1)), (P, S(0)), (P, R), (P, I), (I, R), (I, S(1)), (I, P), (R, P), (S(1), P)]


@pytest.mark.parametrize(("src", "dst"), CHANGES)
@pytest.mark.parametrize("side", ["input", "output"])
def test_what_a_tensor_denotes_stays_and_so_does_its_gradient(src, dst, side):
    dims = ParallelismDims(dp_shard=2, tp=2)
    before, after = ({"dp": S(2), "cp": R, "tp": kind} for kind in (src, dst))
    names = {"input": ("in_src_shardings", "in_dst_shardings"), "output": ("out_src_shardings", "out_dst_shardings")}
    layouts = ({"x": before}, {"x": after}) if side == "input" else (before, after)
    config = calling(lambda self, x: x, **dict(zip(names[side], layouts, strict=True)))
    x, gradient = sample((4, 2, 6), 1), sample((4, 2, 6), 2)

    def tracked(layout):
        return {axis: kind for axis, kind in layout.items() if axis != "cp"}

    def program(member):
        mine = local(tracked(before), x, dims, member.rank).requires_grad_()
        y = member.module(mine)
        dual = {axis: kind.dual for axis, kind in tracked(after).items()}
        y.backward(local(dual, gradient, dims, member.rank))
        return y.detach(), mine.grad

    outputs, gradients = zip(*on_ranks(dims, config, program), strict=True)
    assert torch.equal(denoted(tracked(after), outputs, dims), x)
    dual = {axis: kind.dual for axis, kind in tracked(before).items()}
    assert torch.equal(denoted(dual, gradients, dims), gradient)
