"""What is R is the same on every rank, whoever computes with it or writes into it.

Refused: R times the rank, however the rank is known; R times what was read from V; a branch by V around a collective;
a write of V into a part of R, by `.data`, or through a view; dropout on R with a seed of each rank's own.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshwright.spmd as spmd
from meshwright.errors import SpmdTypeError
from tests.check.judged import judged, on, refusal, says

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
TWO = on("tp", 2)
AXES, DEGREES = st.sampled_from(["tp", "cp", "dp"]), st.sampled_from([2, 3])


def r(*shape, axis="tp"):
    return spmd.assert_type(torch.ones(shape, dtype=torch.float64), {axis: R})


def v(*shape, axis="tp"):
    return spmd.assert_type(torch.full(shape, 2.0, dtype=torch.float64), {axis: V})


class TestTheRank:
    @settings(max_examples=8)
    @given(axis=AXES, degree=DEGREES, length=st.integers(1, 4))
    def test_its_place_on_an_axis_makes_a_list(self, axis, degree, length):
        """R * axis_index is V: to go on with it as R is refused, and the gather makes it one tensor."""

        def program(rank, dst=None):
            scaled = r(length, axis=axis) * spmd.axis_index(axis)
            if dst is None:
                return spmd.assert_type(scaled, {axis: R})
            return spmd.all_gather(scaled, axis, src=V, dst=R)

        says(refusal(program, on(axis, degree)), axis, "V, R", "V -> R: all_gather(x, ")
        expected = torch.arange(degree).double()[:, None].expand(-1, length)
        for found in judged(lambda rank: program(rank, dst=R), on(axis, degree)):
            assert torch.equal(found, expected)

    @pytest.mark.parametrize(
        "use",
        [
            lambda x, n: x * n,
            lambda x, n: n * x,
            lambda x, n: x + n,
            lambda x, n: x - 2 * n,
            lambda x, n: x / (n + 1),
            lambda x, n: torch.mul(x, n),
            lambda x, n: torch.mul(input=x, other=n),
            lambda x, n: x.mul(n + 1.0),
            lambda x, n: torch.add(x, x, alpha=n),
            lambda x, n: torch.addcmul(x, x, x, value=n),
            lambda x, n: torch.lerp(x, x, n),
            lambda x, n: x.clamp(min=n),
            lambda x, n: torch.where(x > 0, x, n),
            lambda x, n: x**n,
            lambda x, n: x * torch.tensor(n),
            lambda x, n: x * torch.full((4,), n),
            lambda x, n: torch.ops.aten.mul.Scalar(x, n),
            lambda x, n: torch._foreach_mul([x], n)[0],
        ],
    )
    def test_however_it_is_used(self, use):
        says(refusal(lambda rank: spmd.assert_type(use(r(4), spmd.axis_index("tp")), {"tp": R}), TWO), "tp", "V, R")

    @pytest.mark.parametrize("write", ["mul_", "add_", "__imul__", "__iadd__", "fill_"])
    def test_it_is_not_written_into_what_all_hold(self, write):
        says(refusal(lambda rank: getattr(r(4), write)(spmd.axis_index("tp")), TWO), "tp", "V, R")

    @settings(max_examples=8)
    @given(axis=AXES, degree=DEGREES)
    def test_the_rank_that_a_run_hands_in(self, axis, degree):
        problem = refusal(lambda rank: r(3, axis=axis) * rank, on(axis, degree))
        assert f"axis {axis!r}" in problem.what
        assert "is another number on every rank" in problem.what
        assert "spmd.axis_index" in problem.fix

    @pytest.mark.parametrize(
        "use",
        [lambda n: n + 1, lambda n: 2 * n, lambda n: n * 2.0, lambda n: -n, lambda n: n % 2, lambda n: 1 / (n + 1)],
    )
    def test_arithmetic_does_not_hide_it(self, use):
        assert "is another number on every rank" in refusal(lambda rank: r(3) * use(rank), TWO).what


@pytest.fixture(scope="module")
def processes():
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


RANKS = {
    "dist.get_rank()": lambda mesh: dist.get_rank(),
    "torch.distributed.get_rank()": lambda mesh: torch.distributed.get_rank(),
    "of the group": lambda mesh: dist.get_rank(mesh.get_group("tp")),
    "of the group, by name": lambda mesh: dist.get_rank(group=mesh.get_group("tp")),
    "axis_index": lambda mesh: spmd.axis_index("tp"),
}


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("length", [1, 4])
def test_the_rank_of_a_process(processes, rank, length):
    with spmd.set_current_mesh(processes), spmd.typecheck(), pytest.raises(SpmdTypeError) as error:
        spmd.assert_type(r(length) * RANKS[rank](processes), {"tp": R})
    (problem,) = error.value.problems
    assert "'tp'" in problem.what


class TestReplay:
    """A plain number of Python remembers nothing: the ranks are played one after the other, and compared."""

    @settings(max_examples=6)
    @given(axis=AXES, degree=DEGREES, length=st.integers(1, 4))
    def test_a_plain_number_is_found(self, axis, degree, length):
        def program(place):
            return r(length, axis=axis) * place()

        with pytest.raises(SpmdTypeError) as error:
            spmd.check(lambda: program(lambda: int(str(int(spmd.axis_index(axis))))), {axis: degree})
        (problem,) = error.value.problems
        assert f"axis {axis!r}" in problem.what
        assert f"spmd.axis_index({axis!r})" in problem.fix
        assert spmd.check(lambda: program(lambda: spmd.axis_index(axis)), {axis: degree}).problems == []

    PLAIN = (
        lambda place: r(4) * float(place),
        lambda place: r(4) * [1.0, 2.0][place],
        lambda place: r(4, 4)[int(place)],
        lambda place: r(4, 4).chunk(2)[place].sum() * (3.0 if place else 2.0),
        lambda place: r(4, 4).narrow(0, int(place), 1),
        lambda place: r(4).roll(int(place)),
        lambda place: F.leaky_relu(r(4), float(place)),
        lambda place: F.layer_norm(r(4), (4,), eps=float(place)),
        lambda place: r(4, 4).sum(int(place)),
        lambda place: r(4).exp() if place == 0 else r(4),
        lambda place: [r(4).exp() for _ in range(int(place))],
        lambda place: spmd.all_reduce(spmd.assert_type(torch.ones(4), {"tp": P}), "tp", src=P, dst=R) if place else 0,
        lambda place: r(4).__setitem__(int(place), 1.0),
        lambda place: r(4).__setitem__(0, float(place)),
    )

    @pytest.mark.parametrize("program", PLAIN)
    def test_in_whatever_way_python_knows_it(self, program):
        with pytest.raises(SpmdTypeError, match="axis 'tp'"):
            spmd.check(lambda: program(spmd.axis_index("tp")), {"tp": 2})

    def test_two_axes_are_told_apart(self):
        def program():
            x = spmd.assert_type(torch.ones(4), {"dp": R, "tp": R})
            return x * float(spmd.axis_index("tp"))

        with pytest.raises(SpmdTypeError) as error:
            spmd.check(program, {"dp": 2, "tp": 2})
        assert any("axis 'tp'" in problem.what for problem in error.value.problems)

    def test_what_is_the_same_on_every_rank_is_not(self):
        def program():
            x = r(4) * float(spmd.axis_size("tp"))
            if spmd.axis_size("tp") == 2:
                x = x.exp()
            return x

        assert spmd.check(program, {"tp": 2}).problems == []


READ = {
    "item": lambda x: x.item(),
    "float": lambda x: float(x),
    "int": lambda x: int(x),
    "complex": lambda x: complex(x),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: float(x.numpy()),
    "index": lambda x: [0, 1, 2, 3][x.long()],
    "format": lambda x: float(f"{x:.1f}"),
    "aten": lambda x: torch.ops.aten.item(x),
    "bool": lambda x: 2.0 if x > 0 else 3.0,
    "of a sum": lambda x: x.expand(3).sum().item(),
    "max of Python": lambda x: max(x, x * 2).item(),
    "in": lambda x: float(2.0 in x.reshape(1)),
    "equal": lambda x: float(torch.equal(x, x)),
    "is_nonzero": lambda x: float(torch.is_nonzero(x)),
}


@pytest.mark.parametrize("read", READ)
def test_what_is_read_from_a_list_is_no_number_for_all(read):
    def program(rank, gathered=False):
        x = v()
        if gathered:
            x = spmd.all_gather(x, "tp", src=V, dst=R)[0]
        return (r(4) * READ[read](x)).sum()

    says(refusal(program, TWO), "tp", "V", "keep it a tensor")
    first, second = judged(lambda rank: program(rank, gathered=True), TWO)
    assert torch.equal(first, second)


@settings(max_examples=8)
@given(axis=AXES, degree=DEGREES, length=st.integers(1, 4), kind=st.sampled_from([V, S(0), P]))
def test_a_branch_around_a_collective(axis, degree, length, kind):
    def program(rank, reduced=False):
        x = spmd.assert_type(torch.ones(length), {axis: kind})
        total = x.sum()
        if reduced:
            claimed = spmd.reinterpret(total, axis, src=V, dst=P) if kind is V else total
            total = spmd.all_reduce(claimed, axis, src=P, dst=R)
        if total > 0:
            return spmd.all_reduce(spmd.assert_type(torch.ones(2), {axis: P}), axis, src=P, dst=R)
        return None

    says(refusal(program, on(axis, degree)), axis, "V" if kind is V else "P")
    judged(lambda rank: program(rank, reduced=True), on(axis, degree))


def part(x):
    x[:, 0:2] = v(4, 2)


def part_by_row(x):
    x[0] = v(4)


def part_by_ellipsis(x):
    x[..., 1] = v(4)


def data(x):
    x.data = v(4, 4)


def data_of_a_leaf(x):
    x.requires_grad_().data[0] = v(4)


def rows(x):
    for row in x:
        row.copy_(v(4))


WRITES = {
    "a part": part,
    "a row": part_by_row,
    "an ellipsis": part_by_ellipsis,
    ".data": data,
    ".data of a leaf": data_of_a_leaf,
    "copy_": lambda x: x.copy_(v(4, 4)),
    "add_": lambda x: x.add_(v(4, 4)),
    "add_, by name": lambda x: x.add_(other=v(4, 4)),
    "mul_": lambda x: x.mul_(v(4, 4)),
    "operator": lambda x: x.__iadd__(v(4, 4)),
    "lerp_": lambda x: x.lerp_(v(4, 4), 0.5),
    "fill_": lambda x: x.fill_(v()),
    "masked_fill_": lambda x: x.masked_fill_(v(4, 4) > 0, 0.0),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([1]), v(1, 4)),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([1]), v(1, 4)),
    "index_put_": lambda x: x.index_put_((torch.tensor([1]),), v(1, 4)),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 4, dtype=torch.long), v(1, 4)),
    "out=": lambda x: torch.add(v(4, 4), 1.0, out=x),
    "out= of a product": lambda x: torch.matmul(v(4, 4), v(4, 4), out=x),
    "out= of a sum": lambda x: torch.sum(v(2, 4, 4), 0, out=x),
    "aten": lambda x: torch.ops.aten.add_.Tensor(x, v(4, 4)),
    "aten copy_": lambda x: torch.ops.aten.copy_(x, v(4, 4)),
    "foreach": lambda x: torch._foreach_add_([x], [v(4, 4)]),
    "foreach copy": lambda x: torch._foreach_copy_([x], [v(4, 4)]),
    "a view": lambda x: x.view(-1).copy_(v(16)),
    "a view of a view": lambda x: x.view(2, 8).view(-1)[:2].copy_(v(2)),
    "reshape": lambda x: x.reshape(16).add_(v(16)),
    "flatten": lambda x: x.flatten().add_(v(16)),
    "detach": lambda x: x.detach().copy_(v(4, 4)),
    "a view of detach": lambda x: x.detach().view(16).copy_(v(16)),
    "expand": lambda x: x.unsqueeze(0).expand(1, 4, 4).copy_(v(1, 4, 4)),
    "transpose": lambda x: x.transpose(0, 1).copy_(v(4, 4)),
    ".T": lambda x: x.T.copy_(v(4, 4)),
    "permute": lambda x: x.permute(1, 0).copy_(v(4, 4)),
    "movedim": lambda x: x.movedim(0, 1).copy_(v(4, 4)),
    "unbind": lambda x: x.unbind(0)[1].copy_(v(4)),
    "rows": rows,
    "split": lambda x: x.split(2)[1].copy_(v(2, 4)),
    "split, by sizes": lambda x: x.split([1, 3])[1].copy_(v(3, 4)),
    "chunk": lambda x: x.chunk(2, 1)[0].copy_(v(4, 2)),
    "tensor_split": lambda x: x.tensor_split(2)[0].copy_(v(2, 4)),
    "narrow": lambda x: x.narrow(0, 0, 2).copy_(v(2, 4)),
    "select": lambda x: x.select(0, 0).copy_(v(4)),
    "diagonal": lambda x: x.diagonal().copy_(v(4)),
    "unfold": lambda x: x.unfold(0, 2, 2).copy_(v(2, 4, 2)),
    "squeeze": lambda x: x[:1].squeeze(0).copy_(v(4)),
    "unflatten": lambda x: x.unflatten(0, (2, 2)).copy_(v(2, 2, 4)),
    "contiguous": lambda x: x.contiguous().copy_(v(4, 4)),
    "a parameter": lambda x: torch.nn.Parameter(x).detach().copy_(v(4, 4)),
    "cpu": lambda x: x.cpu().copy_(v(4, 4)),
    "inplace=True": lambda x: F.relu(x.add_(v(4, 4)), inplace=True),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_into_what_all_hold(write):
    problem = refusal(lambda rank: WRITES[write](r(4, 4)), TWO)
    says(problem, "tp", "V, R")
    assert problem.fix


@settings(max_examples=10)
@given(axis=AXES, degree=DEGREES, write=st.sampled_from(sorted(WRITES)))
def test_into_what_is_a_list_the_same_write_is_right(axis, degree, write):
    """The printed fix: a tensor that is V, in place of a write into R."""

    def program(rank):
        x = spmd.convert(r(degree, 4, 4), "tp", src=R, dst=V)
        WRITES[write](x.clone())

    judged(program, on("tp", degree))


SEEDS = {
    "by place": lambda: spmd.axis_index("tp"),
    "by place, and more": lambda: 42 + 1000 * spmd.axis_index("tp"),
}
DROPS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "in place": lambda x: F.dropout(x, 0.5, inplace=True),
    "module": lambda x: torch.nn.Dropout(0.5)(x),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "dropout2d": lambda x: F.dropout2d(x.view(1, 4, 4, 1), 0.5),
    "bernoulli": lambda x: torch.bernoulli(x * 0.5),
    "rand_like": lambda x: x * torch.rand_like(x),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: torch.nn.init.normal_(x),
    "trunc_normal_": lambda x: torch.nn.init.trunc_normal_(x),
    "kaiming": lambda x: torch.nn.init.kaiming_uniform_(x),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("drop", DROPS)
def test_random_numbers_of_each_ranks_own(drop, seed):
    def program(rank, number):
        torch.manual_seed(number())
        return DROPS[drop](r(4, 4))

    problem = refusal(lambda rank: program(rank, SEEDS[seed]), TWO)
    says(problem, "tp", "R", "one seed for all ranks of 'tp', by torch.manual_seed(seed); or R -> V")
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck():
        assert spmd.layout_of(program(0, lambda: 5)) == {"tp": R}


def test_the_seed_of_a_rank_that_was_handed_in():
    def program(rank):
        torch.manual_seed(rank)
        return F.dropout(r(4), 0.5)

    says(refusal(program, TWO), "tp", "R", "one seed for all ranks")


def test_seeds_that_a_plain_number_made_different_are_found_by_replay():
    def program():
        torch.manual_seed(int(spmd.axis_index("tp")))
        return F.dropout(r(4), 0.5)

    with pytest.raises(SpmdTypeError, match="axis 'tp'"):
        spmd.check(program, {"tp": 2})
