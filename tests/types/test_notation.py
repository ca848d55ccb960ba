"""What is printed can be read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.layout import SpmdLayout
from meshwright.types.notation import DTYPES, parse, parse_layout, render, render_layout, short_dtype
from tests.sampling import layouts

shapes = st.lists(st.integers(0, 2**40), min_size=3, max_size=5).map(tuple)


@given(dtype=st.sampled_from(sorted(DTYPES.values())), shape=shapes, layout=layouts(sizes=True))
def test_a_tensor_is_read_back_as_it_was_printed(dtype, shape, layout):
    read = parse(render(dtype, shape, layout))
    assert read == (dtype, shape, layout)
    assert read[2] is layout


@given(layout=layouts(sizes=True))
def test_a_layout_alone_is_read_back_as_it_was_printed(layout):
    assert parse_layout(render_layout(layout)) is layout


@pytest.mark.parametrize(
    ("text", "shape", "types"),
    [
        ("f32[4@dp, 512@(cp,tp), 16]{ep:P}", (4, 512, 16), {"dp": S(0), "cp": S(1), "tp": S(1), "ep": P}),
        ("bf16[5@tp(3,2)]", (5,), {"tp": S(0, (3, 2))}),
        ("i64[7@(cp,tp(4,3)), 2]{dp:R, ep:V}", (7, 2), {"cp": S(0), "tp": S(0, (4, 3)), "dp": R, "ep": V}),
        ("f32[]{tp:I}", (), {"tp": I}),
        ("bool[0]", (0,), {}),
    ],
)
def test_tensors_in_the_notation(text, shape, types):
    dtype = text.partition("[")[0]
    assert render(dtype, shape, SpmdLayout(types)) == text
    assert parse(text) == (dtype, shape, SpmdLayout(types))


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("[·@dp, ·@(cp,tp)]{ep:P}", {"dp": S(0), "cp": S(1), "tp": S(1), "ep": P}),
        ("[·, ·, ·@tp]", {"tp": S(2)}),
        ("{tp:R, ep:P}", {"tp": R, "ep": P}),
        ("[]", {}),
    ],
)
def test_layouts_in_the_notation(text, types):
    assert render_layout(SpmdLayout(types)) == text
    assert parse_layout(text) is SpmdLayout(types)


def test_spaces_do_not_matter():
    assert parse(" f32 [ 4 @ dp,512@( cp , tp ( 3,2 ) ) ] { ep : P } ") == parse("f32[4@dp, 512@(cp,tp(3,2))]{ep:P}")


def test_dtypes_have_short_names():
    assert [short_dtype(name) for name in ("torch.float32", "bfloat16", "f64", "torch.int64")] == [
        "f32",
        "bf16",
        "f64",
        "i64",
    ]
    assert render("torch.float16", (2,), SpmdLayout({})) == "f16[2]"
    assert short_dtype("torch.float4_e2m1fn_x2") == "float4_e2m1fn_x2"


def test_short_names_are_unique():
    assert len(set(DTYPES.values())) == len(DTYPES)


@pytest.mark.parametrize(
    ("text", "column", "wanted"),
    [
        ("[4]", 1, "a dtype"),
        ("f32[4@dp, 5@dp]", 13, "an axis other than 'dp'"),
        ("f32[4]{tp:S}", 11, "R, I, V or P"),
        ("f32[4", 6, "','"),
        ("f32[x]", 5, "the length of a dim"),
        ("f32[4@]", 7, "an axis"),
        ("f32[4@tp(a)]", 10, "a shard's length"),
        ("f32[4]{tp}", 10, "':'"),
        ("f32[4] and more", 8, "the end"),
    ],
)
def test_text_that_is_no_layout_is_refused_where_it_goes_wrong(text, column, wanted):
    with pytest.raises(SpmdTypeError) as error:
        parse(text)
    (problem,) = error.value.problems
    assert problem.where == f"column {column}"
    assert wanted in problem.what
    assert text in problem.what
    assert parse(problem.fix)


def test_a_layout_that_shards_a_dim_the_tensor_does_not_have_is_refused():
    with pytest.raises(SpmdTypeError, match=r"axis 'tp': S\(2\) shards dim 2 of a tensor of shape \(4, 8\)"):
        render("f32", (4, 8), SpmdLayout({"tp": S(2)}))
    with pytest.raises(SpmdTypeError, match="a scalar has no dim to shard"):
        render("f32", (), SpmdLayout({"tp": S(0)}))
