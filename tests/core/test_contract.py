"""All that is wrong with a declaration is found when the module is parallelized, together, and each says what to do."""

from __future__ import annotations

import pytest

from meshwright.backends.parallelize import parallelize
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.shapes import shape_view
from meshwright.core.sharding import LocalMapConfig
from meshwright.train.assemble import local_backend
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.planner import Transition
from tests.core.toys import calling, holding
from tests.ranks import on_meta, refused

TP = ParallelismDims(tp=2)
DP_TP = ParallelismDims(dp_shard=3, tp=2)
PAIRS = ParallelismDims(tp=4, tp_copy=2)
"""Four ranks, of which neighbours share key/value heads."""
OFF = ParallelismDims()
REST = {"dp": R, "cp": R}


def forward(self, x_BLD, mask=None, *, scale=None):
    return x_BLD


def declared(**sharding):
    return calling(forward, **sharding)


def only(problems):
    (problem,) = problems
    return problem


def test_a_right_declaration_has_no_problem():
    config = declared(
        in_src_shardings={"x_BLD": {"dp": S(0), "cp": S(1), "tp": S(1)}, "mask": {**REST, "tp": R}},
        in_dst_shardings={"x_BLD": {"dp": S(0), "cp": S(1), "tp": R}},
        out_src_shardings={"dp": S(0), "cp": S(1), "tp": P},
        out_dst_shardings={"dp": S(0), "cp": S(1), "tp": S(1)},
    )
    for dims in (OFF, TP, DP_TP, PAIRS):
        assert refused(config, dims) == ()


class TestNames:
    def test_a_renamed_argument_is_named_with_the_nearest(self):
        problem = only(refused(declared(in_src_shardings={"x": {**REST, "tp": R}}), TP))
        assert problem.where == "Called.sharding_config.in_src_shardings['x']"
        assert problem.what == "Called has no argument 'x', did you mean 'x_BLD'?"
        assert problem.fix == "one of 'x_BLD', 'mask', 'scale'"

    @pytest.mark.parametrize("dims", [OFF, TP])
    def test_a_wrong_name_is_wrong_whatever_axes_are_on(self, dims):
        assert (
            "no argument 'masks'" in only(refused(declared(in_src_shardings={"masks": {**REST, "tp": R}}), dims)).what
        )

    def test_a_renamed_state_is_named_with_the_nearest(self):
        config = holding({"weight": (4, 4)}, state_shardings={"wieght": {**REST, "tp": R}})
        unknown, missing = refused(config, TP)
        assert unknown.what == "Holds has no state 'wieght', did you mean 'weight'?"
        assert missing.what == "the state 'weight' [4, 4] has no layout"

    def test_a_module_without_states_says_so(self):
        assert (
            only(refused(declared(state_shardings={"weight": {**REST, "tp": R}}), TP)).fix
            == "Called has none: leave it out"
        )

    def test_a_gradient_is_declared_for_a_declared_input(self):
        config = declared(
            in_src_shardings={"x_BLD": {**REST, "tp": R}},
            local_map=LocalMapConfig(in_grad_shardings={"x_BLD": {**REST, "tp": P}, "mask": None}),
        )
        assert "no declared input 'mask'" in only(refused(config, OFF)).what

    @pytest.mark.parametrize("taken", ["inputs", "options"])
    def test_what_forward_collects_is_no_argument(self, taken):
        def collects(self, *inputs, **options):
            return inputs

        config = calling(collects, in_src_shardings={taken: {**REST, "tp": R}})
        assert f"no argument '{taken}'" in only(refused(config, TP)).what


class TestAxes:
    def test_an_unknown_axis_lists_the_valid_ones(self):
        unknown, missing = refused(declared(in_src_shardings={"x_BLD": {**REST, "tpp": R}}), TP)
        assert unknown.what == "axis 'tpp': no such axis here, did you mean 'tp'?"
        assert unknown.fix == "one of 'dp', 'cp', 'tp', 'tp_kv', 'tp_copy'"
        assert "says nothing of 'tp'" in missing.what

    def test_every_axis_that_is_on_is_named(self):
        dp, tp = refused(declared(out_src_shardings={"cp": R}), DP_TP)
        assert "says nothing of 'dp', which has 3 ranks" in dp.what
        assert "says nothing of 'tp', which has 2 ranks" in tp.what
        assert (dp.fix, tp.fix) == ("'dp': R, I, P or S(dim)", "'tp': R, I, P or S(dim)")

    def test_an_empty_layout_names_none(self):
        problem = only(refused(declared(out_src_shardings={}), TP))
        assert "says nothing of 'tp'" in problem.what
        assert not problem.uneven

    @pytest.mark.parametrize(
        ("axes", "missing"), [({"tp_kv": R}, "tp_copy"), ({"tp_copy": R}, "tp_kv"), ({}, "tp"), ({"tp": R}, None)]
    )
    def test_an_axis_may_be_named_by_its_factors(self, axes, missing):
        problems = refused(declared(out_src_shardings={**REST, **axes}), PAIRS)
        assert [f"says nothing of '{missing}'" in problem.what for problem in problems] == ([True] if missing else [])

    def test_axes_over_the_same_ranks_overlap(self):
        problem = only(refused(declared(out_src_shardings={**REST, "tp": S(2), "tp_kv": R}), PAIRS))
        assert problem.what == "'tp' and 'tp_kv' are the same ranks"
        assert problem.fix == "leave out 'tp' or 'tp_kv'"

    def test_axes_that_are_off_are_left_out(self):
        """Even where nothing could be cut over them."""
        config = holding({"weight": (3,)}, state_shardings={"weight": {"dp": S(0), "cp": R, "tp": R}})
        assert refused(config, TP) == ()
        assert len(refused(config, ParallelismDims(dp_shard=2))) == 1


class TestStates:
    @pytest.mark.parametrize(("length", "ranks"), [(5, 2), (3, 2), (4, 3), (2, 4)])
    def test_a_division_that_is_impossible_names_both_numbers(self, length, ranks):
        config = holding({"weight": (7, length)}, state_shardings={"weight": {**REST, "tp": S(1)}})
        problem = only(refused(config, ParallelismDims(tp=ranks)))
        assert problem.what == f"dim 1 of [7, {length}] does not divide over tp = {ranks} ranks"
        assert f"a multiple of {ranks}" in problem.fix
        assert problem.uneven

    def test_a_dim_is_divided_over_all_axes_that_shard_it(self):
        config = holding({"weight": (4,)}, state_shardings={"weight": {"dp": S(0), "cp": R, "tp": S(0)}})
        assert "does not divide over dp x tp = 6 ranks" in only(refused(config, DP_TP)).what

    @pytest.mark.parametrize("kind", ["params", "buffers"])
    def test_so_is_a_dim_that_is_cut_only_in_compute(self, kind):
        state = {"state": (5,)}
        sharding = {"state_shardings": {"state": Transition({**REST, "tp": R}, {**REST, "tp": S(0)})}}
        config = holding(state, **sharding) if kind == "params" else holding(buffers=state, **sharding)
        assert "dim 0 of [5] does not divide" in only(refused(config, TP)).what

    @pytest.mark.parametrize(("shape", "fix"), [((4,), "S(dim) with dim below 1"), ((), "'tp': R")])
    def test_a_dim_that_is_not_there(self, shape, fix):
        problem = only(refused(holding({"w": shape}, state_shardings={"w": {**REST, "tp": S(1)}}), TP))
        assert problem.what == f"S(1) on 'tp', but the state has {len(shape)} dims: {list(shape)}"
        assert problem.fix.startswith(fix)

    @pytest.mark.parametrize("sizes", [(3, 1), (1, 2), (4,)])
    def test_parts_of_a_state_are_equal(self, sizes):
        config = holding({"w": (4,)}, state_shardings={"w": {**REST, "tp": S(0, sizes)}})
        assert "states the ranks' lengths" in only(refused(config, TP)).what

    def test_every_parameter_and_buffer_has_a_layout(self):
        config = holding({"a": (2,), "b": (2,)}, buffers={"c": (2,)}, state_shardings={"a": {**REST, "tp": R}})
        b, c = refused(config, TP)
        assert (b.where, c.where) == tuple(f"Holds.sharding_config.state_shardings['{name}']" for name in "bc")

    @pytest.mark.parametrize(("kind", "fix"), [(P, "Transition({'tp': R}, {'tp': P})"), (V, "'tp': R, I or S(dim)")])
    def test_a_parameter_at_rest_is_no_part_of_a_sum_and_none_of_a_list(self, kind, fix):
        """Every rank would start with the whole of it, and the sum would be as many times too large."""
        problem = only(refused(holding({"bias": (4,)}, state_shardings={"bias": {**REST, "tp": kind}}), TP))
        assert problem.what == f"a parameter at rest is {kind!r} on 'tp'"
        assert problem.fix.startswith(fix)
        assert refused(holding({"bias": (4,)}, state_shardings={"bias": {**REST, "tp": kind}}), OFF) == ()


class TestTransitions:
    def test_where_no_steps_lead_the_axis_is_named_and_what_can_be_reached(self):
        config = declared(
            in_src_shardings={"x_BLD": {**REST, "tp": S(1)}}, in_dst_shardings={"x_BLD": {**REST, "tp": V}}
        )
        problem = only(refused(config, TP))
        assert problem.where.endswith("in_dst_shardings['x_BLD']")
        assert problem.what == "axis 'tp': there is no step S(1) -> V"
        assert "R, I" in problem.fix

    def test_a_destination_needs_a_source(self):
        config = declared(
            in_dst_shardings={"x_BLD": {**REST, "tp": R}}, out_dst_shardings=({**REST, "tp": R}, {**REST, "tp": R})
        )
        inputs, outputs = refused(config, TP)
        assert inputs.fix == "in_src_shardings['x_BLD'] = the layout that the tensor arrives with"
        assert outputs.fix == "out_src_shardings = the layout that the tensor is computed with"

    def test_so_does_one_of_several_outputs(self):
        whole = {**REST, "tp": R}
        problems = refused(declared(out_src_shardings=(None, whole), out_dst_shardings=(whole, whole)), TP)
        assert only(problems).what == "out_src_shardings is not declared"

    @pytest.mark.parametrize(
        ("dst", "found"),
        [
            ({"tp": R}, "a tuple of 2, but it is one tensor"),
            (({"tp": R},), "a tuple of 2, but it is a tuple of 1"),
            (({"tp": R}, ({"tp": R}, {"tp": R})), "one tensor, but it is a tuple of 2"),
            ({"y": ({"tp": R},)}, "a tuple of 2, but it is a dict of y"),
        ],
    )
    def test_outputs_are_built_alike_on_either_side(self, dst, found):
        problem = only(refused(declared(out_src_shardings=({"tp": R}, {"tp": R}), out_dst_shardings=dst), TP))
        assert problem.where.endswith("out_dst_shardings")
        assert problem.what == f"not built like out_src_shardings: declared as {found}"


class TestRegions:
    REGION = ({"dp": S(0), "cp": S(1), "tp": R}, {"dp": S(0), "cp": S(1), "tp": S(2)})

    def region(self, gradients, inside=REGION[0]):
        return declared(
            in_src_shardings={"x_BLD": self.REGION[0]},
            in_dst_shardings={"x_BLD": inside},
            local_map=LocalMapConfig(in_grad_shardings=gradients),
        )

    def test_without_gradient_layouts_nothing_is_assumed(self):
        problem = only(refused(self.region({}), TP))
        assert problem.what == "no gradient layout for 'x_BLD', which enters as {tp:R}"
        assert "where R meets S inside a region the gradient is P" in problem.why
        assert problem.fix == "'x_BLD': {tp:P}, or None if it has no gradient"

    @pytest.mark.parametrize("inside", REGION)
    def test_the_gradient_has_the_dual_layout(self, inside):
        dual = {axis: kind.dual for axis, kind in inside.items()}
        assert refused(self.region({"x_BLD": dual}, inside), DP_TP) == ()
        assert refused(self.region({"x_BLD": None}, inside), DP_TP) == ()

    @pytest.mark.parametrize("wrong", [R, I, S(1)])
    def test_another_gradient_is_refused(self, wrong):
        problem = only(refused(self.region({"x_BLD": {"dp": S(0), "cp": S(1), "tp": wrong}}), TP))
        assert problem.what == f"{{tp:{wrong!r}}}, but the input enters as {{tp:R}}"
        assert problem.fix.startswith("{tp:P}")

    def test_what_counts_is_the_layout_inside(self):
        assert refused(self.region({"x_BLD": self.REGION[1]}, self.REGION[1]), TP) == ()
        assert len(refused(self.region({"x_BLD": {**self.REGION[0], "tp": P}}, self.REGION[1]), TP)) == 1


class TestExperts:
    """Layouts on the axes of experts."""

    SPREAD = ParallelismDims(dp_shard=2, tp=2, ep=2)
    WHOLE = {"dp_replicate": R, "efsdp": R, "ep": S(0)}  # noqa: RUF012

    def held(self, dims, layout):
        backend = local_backend(dims, 0, shape_view(dims, 0, dims.compute))
        model = on_meta(holding({"weight": (4, 4)}, state_shardings={"weight": layout}))
        return parallelize(model, backend)["weight"]

    def test_each_rank_has_its_own_experts(self):
        info = self.held(self.SPREAD, self.WHOLE)
        assert info.layout == {"efsdp": R, "ep": S(0)}
        assert info.stored.local_shape((4, 4), self.SPREAD.base, {**dict.fromkeys(self.SPREAD.base, 0)}) == (2, 4)

    def test_where_they_are_not_spread_they_lie_on_the_axes_of_all_else(self):
        assert self.held(DP_TP, self.WHOLE).layout == {"dp": R, "tp": R}
        assert self.held(OFF, self.WHOLE).layout == {}

    def test_a_type_that_no_dense_axis_has_is_told(self):
        dims = ParallelismDims(dp_replicate=2, dp_shard=2)
        config = holding({"weight": (4, 4)}, state_shardings={"weight": {**self.WHOLE, "efsdp": S(1)}})
        problem = only(refused(config, dims))
        assert "R and S(1) on parts of 'dp'" in problem.what
        assert "--parallel.ep 2" in problem.fix

    def test_every_axis_of_experts_is_named(self):
        config = holding({"weight": (4, 4)}, state_shardings={"weight": {"ep": S(0)}})
        problem = only(refused(config, self.SPREAD))
        assert "says nothing of 'efsdp', which has 2 ranks" in problem.what

    def test_axes_of_both_views_do_not_mix(self):
        config = holding({"weight": (4, 4)}, state_shardings={"weight": {"ep": S(0), "efsdp": R, "cp": R}})
        (problem,) = refused(config, self.SPREAD)
        assert "axis 'cp': no such axis here" in problem.what
        assert "'efsdp'" in problem.fix


def test_all_problems_of_a_module_come_in_one_error():
    config = holding(
        {"weight": (5, 4), "extra": (2,)},
        state_shardings={"weight": {**REST, "tp": S(0)}, "wait": {**REST, "tp": R}},
        in_src_shardings={"y": {**REST, "tp": R}, "x": {**REST, "tpp": R, "tp": R}, "mask": {"cp": R, "tp": R}},
        out_src_shardings={**REST, "tp": S(0)},
        out_dst_shardings={**REST, "tp": V},
        local_map=LocalMapConfig(in_grad_shardings={"x": None}),
    )
    found = [problem.what for problem in refused(config, DP_TP)]
    assert len(found) == 8
    for part in (
        "dim 0 of [5, 4] does not divide",
        "no state 'wait'",
        "'extra' [2] has no layout",
        "no argument 'y'",
        "no such axis",
        "says nothing of 'dp'",
        "no step S(0) -> V",
        "no gradient layout for 'mask'",
    ):
        assert sum(part in what for what in found) == 1, part


def test_every_problem_of_a_declaration_says_why_and_what_to_write():
    config = declared(
        state_shardings={"w": {}},
        in_src_shardings={"x": {}, "x_BLD": {"ep": R, "tp": R, "tp_kv": R}},
        in_dst_shardings={"mask": {**REST, "tp": R}},
        out_src_shardings=({**REST, "tp": S(0)}, None),
        out_dst_shardings=({**REST, "tp": V}, {**REST, "tp": V}),
        local_map=LocalMapConfig(in_grad_shardings={}),
    )
    problems = refused(config, DP_TP)
    assert len(problems) > 6
    for problem in problems:
        assert problem.where.startswith("Called.sharding_config.")
        assert problem.what
        assert problem.fix


def test_a_claim_names_an_axis_and_a_reason():
    region = LocalMapConfig(in_grad_shardings={}, claims={"tp": "rows that a rank has", "tpp": "what", "cp": ""})
    problems = refused(declared(local_map=region), TP)
    assert [problem.where for problem in problems] == [
        f"Called.sharding_config.local_map.claims[{axis!r}]" for axis in ("tpp", "cp")
    ]
    assert all(problem.fix for problem in problems)
