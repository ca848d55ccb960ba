"""What the page for users of spmd-types says of both packages is tried with both."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshwright.spmd as ours
from meshwright.codes import Code
from tests.docs.fenced import blocks, run

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from_spmd_types.md").read_text()
(DIFF,) = [text for language, text in blocks(PAGE) if language == "diff"]
(PROGRAM,) = [text for language, text in blocks(PAGE) if language == "python"]
(SHOWN,) = [text for language, text in blocks(PAGE) if language == "text"]


@pytest.fixture
def theirs():
    package = pytest.importorskip("spmd_types")
    pytest.importorskip("spmd_types.checker")
    return package


def imports(sign: str) -> str:
    return "".join(f"{line[1:]}\n" for line in DIFF.splitlines() if line.startswith(sign))


@pytest.mark.parametrize("sign", ["-", "+"])
def test_the_program_runs_with_both(sign, theirs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert imports("+") in PROGRAM
    run("program.py", PROGRAM.replace(imports("+"), imports(sign)))
    assert capsys.readouterr().out == SHOWN


@pytest.mark.parametrize("sign", ["-", "+"])
def test_both_refuse_a_sum_that_is_not_reduced(sign, theirs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = PROGRAM.replace(imports("+"), imports(sign)).replace("F.silu(x @ w1) @ w2", "F.silu(F.silu(x @ w1) @ w2)")
    package = theirs if sign == "-" else ours
    with pytest.raises(package.SpmdTypeError):
        run("program.py", wrong)


def rows() -> dict[str, tuple[str, str]]:
    """Name -> what the table says of it, and its note."""
    _, table = PAGE.split("## Its public names")
    found = {}
    for names, here, note in re.findall(r"^\| (`.*?) \| (same|differs|not here) \| ?(.*?) ?\|$", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found
            found[name] = here, note
    return found


def test_every_public_name_is_in_the_table(theirs):
    public = {name for name in dir(theirs) if not name.startswith("_")} - {"annotations"}
    assert set(rows()) == public


def test_what_the_table_says_is_here_is_here_and_all_else_is_not():
    for name, (here, note) in rows().items():
        assert (name in ours.__all__) == (here != "not here") or name == "checker", name
        assert note or here == "same", name


def test_what_is_the_same_takes_the_same_arguments(theirs):
    for name, (here, _) in rows().items():
        other = getattr(theirs, name)
        if here == "same" and isinstance(other, types.FunctionType):
            known, mine = (list(inspect.signature(each).parameters)[1:] for each in (other, getattr(ours, name)))
            assert set(known) <= set(mine), name


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("fake", rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def x(spmd, kind, *shape, wants=False):
    return spmd.assert_type(torch.randn(shape).requires_grad_(wants), {"dp": spmd.R, "tp": kind})


def kind(spmd, tensor):
    """The type on tp by its letter."""
    return str(spmd.get_axis_local_type(tensor, "tp"))[-1]


class Doubled(torch.autograd.Function):
    """It enters a parallel region, and forgets to reduce the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def function(spmd, given):
    def hook(outputs, *, x):
        spmd.assert_type(x, {"dp": spmd.R, "tp": spmd.I})
        spmd.assert_type(outputs, {"dp": spmd.R, "tp": spmd.R})

    return type("Doubled", (Doubled,), {"spmd_typecheck": staticmethod(hook)}).apply(given)


def reduced_by_hand(spmd, given):
    dist.all_reduce(given, group=ours.current_mesh()["tp"].group if spmd is ours else _group[0])
    return given


_group: list[dist.ProcessGroup] = []


def renamed(spmd):
    with spmd.set_current_mesh({"tp": spmd.MeshAxis.of(4, 1)}):
        return kind(spmd, spmd.assert_type(torch.randn(4), {"tp": spmd.V}))


def after_a_call(spmd, use):
    """What a program makes once something was judged."""
    given = x(spmd, spmd.R, 4)
    return kind(spmd, use(given * 2))


def added_in_place(spmd):
    given = x(spmd, spmd.R, 4)
    return kind(spmd, given.add_(x(spmd, spmd.V, 4)))


def summed(spmd, tensor):
    return kind(spmd, spmd.reinterpret(tensor, "tp", src=spmd.V, dst=spmd.P))


DIFFERENT = {
    "a list where dims are followed": (lambda m: kind(m, x(m, m.V, 4) * 2), {"local": False}, None, "V"),
    "a contraction in local mode": (
        lambda m: kind(m, x(m, m.S(1), 3, 4) @ x(m, m.S(0), 4, 3)),
        {"local": True},
        "V",
        "P",
    ),
    "a list is reduced": (
        lambda m: kind(m, m.all_reduce(x(m, m.V, 4), "tp", src=m.V, dst=m.R)),
        {},
        "R",
        Code.OTHER_TYPE,
    ),
    "a bias is counted": (lambda m: summed(m, x(m, m.V, 4) + x(m, m.R, 4)), {}, "P", Code.COUNTED),
    "a result later": (
        lambda m: kind(m, m.all_reduce(x(m, m.P, 4), "tp", src=m.P, dst=m.R, async_op=True)),
        {},
        "R",
        Code.NO_STEP,
    ),
    "a number of each rank": (lambda m: type(x(m, m.V).item()).__name__, {}, "float", Code.READ),
    "the rank as a number": (lambda m: after_a_call(m, lambda y: y * dist.get_rank(_group[0])), {}, "R", "V"),
    "a local length": (lambda m: kind(m, x(m, m.R, 4) * x(m, m.S(0), 4).shape[0]), {"local": False}, "R", Code.LENGTH),
    "a write": (added_in_place, {}, "V", Code.WRITE),
    "a raw collective": (
        lambda m: kind(m, reduced_by_hand(m, x(m, m.P, 4, wants=True) * 1)),
        {},
        "R",
        Code.RAW_COLLECTIVE,
    ),
    "a Function's backward": (lambda m: kind(m, function(m, x(m, m.I, 4, wants=True))), {}, "R", Code.FUNCTION),
    "a name for other ranks": (lambda m: (x(m, m.R, 4) * 1, renamed(m))[1], {}, "V", Code.MESH),
    "replicated as a list": (
        lambda m: kind(m, m.reinterpret(x(m, m.R, 4), "tp", src=m.R, dst=m.V)),
        {},
        None,
        "V",
    ),
    "a local region whose gradient nobody states": (
        lambda m: kind(
            m,
            m.local_map(in_types=({"dp": m.R, "tp": m.R}, {"dp": m.R, "tp": m.V}), out_types={"dp": m.R, "tp": m.V})(
                torch.mul
            )(x(m, m.R, 4, wants=True), x(m, m.V, 4)),
        ),
        {},
        "V",
        Code.REGION,
    ),
}
"""Program, arguments of typecheck, what theirs makes of it, and what ours does; None and codes are refusals."""


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_differs_as_it_is_told(name, mesh, theirs):
    program, how, expected, _ = DIFFERENT[name]
    _group[:] = [mesh.get_group("tp")]
    with theirs.set_current_mesh(mesh), theirs.checker.typecheck(**how):
        if expected is None:
            with pytest.raises((theirs.SpmdTypeError, ValueError)):
                program(theirs)
        else:
            assert program(theirs) == expected


@pytest.mark.parametrize("name", DIFFERENT)
def test_ours_does_as_it_is_told(name, mesh):
    program, how, _, expected = DIFFERENT[name]
    _group[:] = [mesh.get_group("tp")]
    with ours.set_current_mesh(mesh), ours.typecheck(**how):
        if isinstance(expected, Code):
            with pytest.raises(ours.SpmdTypeError) as error:
                program(ours)
            assert error.value.problems[0].code is expected
        else:
            assert program(ours) == expected
