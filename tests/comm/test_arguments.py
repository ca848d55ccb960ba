"""Whatever a public call is given, it takes it or says what is wrong in the one class of errors: never Python's own."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


def x(wants=False):
    return torch.ones(4, 4, requires_grad=wants)


def typed(kind):
    return spmd.assert_type(x(), {"tp": kind})


NONSENSE = {
    "None": lambda: None,
    "whole": lambda: 3,
    "below": lambda: -1,
    "beyond": lambda: 99,
    "real": lambda: 1.5,
    "nan": lambda: float("nan"),
    "flag": lambda: True,
    "text": lambda: "bf16",
    "empty list": list,
    "mixed list": lambda: [1, "a"],
    "wrong lengths": lambda: [-1, 5],
    "pair": lambda: (1, 2),
    "empty dict": dict,
    "dict of numbers": lambda: {3: 4},
    "dict of text": lambda: {"tp": "R"},
    "dict of None": lambda: {"tp": None},
    "options": lambda: {"op_dtype": "float32"},
    "tensor": x,
    "type": lambda: R,
    "shard beyond": lambda: S(9),
    "dtype": lambda: torch.int64,
    "function": lambda: lambda: 1,
    "object": object,
}

OPTIONS = dict.fromkeys(("op_dtype", "out_dtype", "backward_options"), lambda: None) | {"async_op": lambda: False}
EXPERT = {"expert_mode": lambda: False}


def arguments(*places, **named):
    """Makers of the arguments of a call that is right, by place or name."""
    return {**dict(enumerate(places)), **named}


def kinds(src, dst, **more):
    return arguments(x, lambda: "tp", src=lambda: src, dst=lambda: dst, **more)


CALLS = {
    "redistribute": (spmd.redistribute, kinds(P, R, **OPTIONS, **EXPERT)),
    "redistribute of layouts": (
        spmd.redistribute,
        arguments(x, src=lambda: {"tp": P}, dst=lambda: {"tp": R}, **OPTIONS, **EXPERT),
    ),
    "all_gather": (spmd.all_gather, kinds(S(0), R, gather_dim=lambda: 0, split_sizes=lambda: None, **OPTIONS)),
    "all_gather of a list": (spmd.all_gather, kinds(V, R, gather_dim=lambda: 1, **OPTIONS)),
    "all_reduce": (spmd.all_reduce, kinds(P, R, inplace=lambda: False, **OPTIONS)),
    "reduce_scatter": (
        spmd.reduce_scatter,
        kinds(P, S(0), scatter_dim=lambda: 0, split_sizes=lambda: [2, 2], **OPTIONS),
    ),
    "all_to_all": (spmd.all_to_all, kinds(S(0), S(1), split_dim=lambda: 0, concat_dim=lambda: 1, **OPTIONS)),
    "all_to_all of rows": (
        spmd.all_to_all,
        kinds(S(0), S(0), input_split_sizes=lambda: [2, 2], output_split_sizes=lambda: [2, 2], **OPTIONS),
    ),
    "all_to_all of a list": (
        spmd.all_to_all,
        arguments(lambda: torch.ones(2, 2), lambda: "tp", split_dim=lambda: 1, concat_dim=lambda: 0, **OPTIONS),
    ),
    "convert": (spmd.convert, kinds(R, S(0), **OPTIONS, **EXPERT)),
    "reinterpret": (spmd.reinterpret, kinds(R, V, **OPTIONS, **EXPERT)),
    "shard": (spmd.shard, kinds(R, S(0), **OPTIONS)),
    "unshard": (spmd.unshard, kinds(S(0), R, **OPTIONS)),
    "invariant_to_replicate": (spmd.invariant_to_replicate, arguments(x, lambda: "tp", **OPTIONS)),
    "assert_type": (spmd.assert_type, arguments(x, lambda: {"tp": R}, partition_spec=lambda: None)),
    "assert_type_like": (spmd.assert_type_like, arguments(x, lambda: typed(R), lambda: {"tp": I})),
    "merge_types": (spmd.merge_types, arguments(lambda: {"tp": R}, lambda: {"dp": R})),
    "mesh": (spmd.mesh, arguments(rank=lambda: 0, tp=lambda: 2)),
    "axis_index": (spmd.axis_index, arguments(lambda: "tp")),
    "axis_size": (spmd.axis_size, arguments(lambda: "tp")),
    "size": (spmd.size, arguments(lambda: typed(S(0)), lambda: 0, lambda: "tp")),
    "plan": (spmd.plan, arguments(lambda: {"tp": P}, lambda: {"tp": R}, lambda: {"tp": 2}, **EXPERT)),
    "step": (spmd.step, arguments(lambda: "tp", lambda: P, lambda: R, **EXPERT)),
    "check": (spmd.check, arguments(lambda: lambda: None, lambda: {"tp": 2}, local=lambda: False)),
    "layout_of": (spmd.layout_of, arguments(x)),
    "has_local_type": (spmd.has_local_type, arguments(x)),
    "get_local_type": (spmd.get_local_type, arguments(x)),
    "get_axis_local_type": (spmd.get_axis_local_type, arguments(lambda: typed(R), lambda: "tp")),
    "get_partition_spec": (spmd.get_partition_spec, arguments(lambda: typed(S(0)))),
    "show": (spmd.show, arguments(lambda: typed(R))),
    "mutate_type": (spmd.mutate_type, arguments(lambda: typed(R), lambda: "tp", src=lambda: R, dst=lambda: I)),
    "reinterpret_mesh": (
        spmd.reinterpret_mesh,
        arguments(lambda: typed(R), lambda: {"tp": R}, inplace=lambda: False),
    ),
    "reinterpret_no_grad": (spmd.reinterpret_no_grad, arguments(lambda: typed(R), lambda: "tp", dst=lambda: I)),
    "set_current_mesh": (spmd.set_current_mesh, arguments(lambda: spmd.mesh(tp=2))),
    "typecheck": (spmd.typecheck, arguments(local=lambda: None, collect=lambda: False)),
    "MeshAxis": (spmd.MeshAxis, arguments(lambda: ((2, 1),), lambda: "tp")),
    "PartitionSpec": (spmd.PartitionSpec, arguments(lambda: "tp", lambda: None)),
    "SpmdLayout": (spmd.SpmdLayout, arguments(lambda: {"tp": R})),
    "Shard": (spmd.Shard, arguments(lambda: 0, lambda: (1, 2))),
    "View": (spmd.View, arguments(dict)),
    "Transition": (spmd.Transition, arguments(lambda: {"tp": P}, lambda: {"tp": R})),
    "local_map": (
        lambda types, out, grads: spmd.local_map(in_types=types, out_types=out, in_grad_types=grads)(lambda a: a)(
            typed(S(0))
        ),
        arguments(lambda: ({"tp": S(0)},), lambda: {"tp": S(0)}, lambda: ({"tp": S(0)},)),
    ),
    "register_autograd_function": (spmd.register_autograd_function, arguments(lambda: None)),
}
"""Public name -> the call, and what makes its arguments."""
NO_CALLS = {
    *("CP", "DP", "DP_REPLICATE", "DP_SHARD", "EFSDP", "EP", "PP", "TP", "TP_COPY", "TP_KV"),
    *("I", "P", "R", "S", "V", "Infer", "Plan", "Report", "SpmdType", "SpmdTypeError", "Step"),
    *("assert_local_type", "current_mesh", "is_type_checking", "local", "no_typecheck"),
}
"""Public names that are values, are made by others of meshwright, or take no argument that can be wrong."""


def test_every_public_name_is_called_here():
    assert {name.split(" ")[0] for name in CALLS} | NO_CALLS == set(spmd.__all__)


def made(name, **instead):
    """What a call gives, with other makers for some of its arguments."""
    call, makers = CALLS[name]
    given = {each: instead.get(str(each), make)() for each, make in makers.items()}
    result = call(
        *(value for each, value in given.items() if isinstance(each, int)),
        **{each: value for each, value in given.items() if isinstance(each, str)},
    )
    if isinstance(result, contextlib.AbstractContextManager):
        with result:
            pass


MODES = {"on": (True, True), "off": (True, False), "outside every mesh": (False, False)}


@contextlib.contextmanager
def around(mode):
    mesh, checks = MODES[mode]
    with contextlib.ExitStack() as stack:
        if mesh:
            stack.enter_context(spmd.set_current_mesh(spmd.mesh(tp=2, dp=2)))
        if checks:
            stack.enter_context(spmd.typecheck())
        yield


@pytest.mark.parametrize("name", CALLS)
def test_what_is_right_is_taken(name):
    assert refusal(name, "on") == ()
    assert [problem.code for problem in refusal(name, "off")] in ([], [Code.UNTYPED])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_is_told_in_one_class_of_errors(name, mode):
    """Every argument in turn is each kind of nonsense; what comes of it is a result, or what is wrong in words."""
    told = [refusal(name, mode, **{str(argument): make}) for argument in CALLS[name][1] for make in NONSENSE.values()]
    refused = [problem for problems in told for problem in problems]
    assert all(problem.what and problem.code for problem in refused)
    assert refused or mode != "on" or name == "get_local_type"


def refusal(name, mode, **instead):
    """The problems of a call; any other error than `SpmdTypeError` fails."""
    try:
        with around(mode):
            made(name, **instead)
    except SpmdTypeError as error:
        return error.problems
    return ()


@settings(max_examples=25)
@given(data=st.data(), mode=st.sampled_from(sorted(MODES)))
def test_several_at_once_too(data, mode):
    name = data.draw(st.sampled_from(sorted(CALLS)))
    places = list(CALLS[name][1])
    wrong = data.draw(st.lists(st.sampled_from(places), min_size=min(2, len(places)), unique=True))
    makers = {str(each): NONSENSE[data.draw(st.sampled_from(sorted(NONSENSE)))] for each in wrong}
    assert all(problem.what and problem.code for problem in refusal(name, mode, **makers))


WRONG = {
    "backward_options": ("all_reduce", lambda: "x", Code.ARGUMENT, "backward_options='x' is not a mapping"),
    "op_dtype": ("all_reduce", lambda: "bf16", Code.PRECISION, "op_dtype='bf16' is not a dtype"),
    "gather_dim": ("all_gather of a list", lambda: 9, Code.SHAPE, "has no place for a list along dim 9"),
    "split_dim": ("all_to_all of a list", lambda: 2, Code.SHAPE, "has no place for a list along dim 2"),
    "1": ("all_reduce", lambda: None, Code.MESH, "None names no axis"),
    "input_split_sizes": ("all_to_all of rows", lambda: "ab", Code.ARGUMENT, "'ab' is not a sequence of whole numbers"),
    "inplace": ("all_reduce", lambda: "yes", Code.ARGUMENT, "inplace='yes' is not True or False"),
}


@pytest.mark.parametrize("argument", WRONG)
@pytest.mark.parametrize("mode", ["on", "off"])
def test_it_says_which_argument_and_what_it_takes(argument, mode):
    name, value, code, what = WRONG[argument]
    with pytest.raises(SpmdTypeError) as error, around(mode):
        made(name, **{argument: value})
    (problem,) = error.value.problems
    assert problem.code is code
    assert what in problem.what
    assert problem.why
    assert problem.fix


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_length_of_a_dim_that_there_is_not(mode):
    with pytest.raises(SpmdTypeError, match="a tensor of 2 dims has no dim 9"), around(mode):
        spmd.size(x(), 9, "tp")


@settings(max_examples=25)
@given(dims=st.integers(0, 3), dim=st.integers(0, 5), call=st.sampled_from(["gather", "scatter", "deal"]))
def test_a_list_lies_along_a_dim_that_there_is_or_the_call_is_refused(dims, dim, call):
    """Held against the shape of the whole tensor: it has a dim more than each rank's entry of the list."""
    degree = 2
    entry, whole = torch.ones([degree] * dims), torch.ones([degree] * dims)

    def program(rank):
        if call == "gather":
            return spmd.all_gather(entry, "tp", src=V, dst=R, gather_dim=dim).dim()
        if call == "scatter":
            return spmd.reduce_scatter(whole, "tp", src=P, dst=V, scatter_dim=dim).dim()
        return spmd.all_to_all(whole, "tp", src=V, dst=V, split_dim=dim, concat_dim=0).dim()

    there, after = {"gather": (dim <= dims, dims + 1), "scatter": (dim < dims, dims - 1)}.get(call, (dim < dims, dims))
    if there:
        assert run_ranks(ParallelismDims(tp=degree), program) == [after] * degree
    else:
        with pytest.raises(SpmdTypeError, match="dim"):
            run_ranks(ParallelismDims(tp=degree), program)


PLACES = {
    "a leaf": lambda: x(wants=True),
    "a view of a leaf": lambda: x(wants=True)[0],
    "an expanded tensor": lambda: torch.ones(1, 4).expand(4, 4),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("checks", [True, False])
def test_a_sum_takes_no_place_that_is_not_its_own(place, checks):
    with spmd.set_current_mesh(spmd.mesh(tp=2)), spmd.typecheck() if checks else contextlib.nullcontext():
        tensor = spmd.assert_type(PLACES[place](), {"tp": P})
        with pytest.raises(SpmdTypeError, match="inplace=True of"):
            spmd.all_reduce(tensor, "tp", src=P, dst=R, inplace=True)


def test_a_leaf_may_be_summed_in_place_where_no_gradient_flows():
    def program(rank):
        leaf = x(wants=True)
        with torch.no_grad():
            return spmd.all_reduce(leaf, "tp", src=P, dst=R, inplace=True)

    for found in run_ranks(ParallelismDims(tp=2), program):
        assert torch.equal(found, 2 * x())
