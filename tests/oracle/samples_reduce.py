"""Samples of reductions, orders and sums along a dim."""

from __future__ import annotations

from functools import partial

import torch

from tests.oracle.sample import Sample, numbers, places, positive, rare, real, rising, sample

X, Z = (12, 12), (4, 12, 6)
ALONG = [
    "amax",
    "amin",
    "prod",
    "std",
    "var",
    "logsumexp",
    "nansum",
    "nanmean",
    "argmax",
    "argmin",
    "median",
    "nanmedian",
]

REDUCE: list[Sample] = [
    sample("sum", torch.sum, Z),
    sample("sum", lambda x: x.sum((0, 2)), Z),
    sample("sum", lambda x: x.sum(1, keepdim=True), Z),
    sample("sum", lambda x: x.sum(0, dtype=torch.float64), Z),
    sample("mean", torch.mean, X),
    sample("mean", lambda x: x.mean(-1, keepdim=True), X),
    *(sample(name, partial(getattr(torch, name), dim=0), positive(*X)) for name in ALONG if "med" not in name),
    *(sample(name, getattr(torch, name), positive(*X)) for name in ("prod", "std", "var", "argmax", "nansum")),
    *(sample(name, getattr(torch, name), X) for name in ("median", "nanmedian", "aminmax")),
    *(sample(name, partial(getattr(torch, name), dim=1), X) for name in ("median", "nanmedian")),
    sample("aminmax", lambda x: torch.aminmax(x, dim=1), X),
    *(sample(name, partial(getattr(torch, name), dim=1), X) for name in ("std_mean", "var_mean")),
    sample("mode", lambda x: torch.mode(x, 1), real(*X, wants=False)),
    sample("kthvalue", lambda x: torch.kthvalue(x, 3, 1), X),
    sample("quantile", lambda x: torch.quantile(x, 0.3, dim=1), X),
    sample("nanquantile", lambda x: torch.nanquantile(x, 0.3, dim=1), X),
    sample("any", lambda x: torch.any(x, dim=0), rare(*X)),
    sample("all", lambda x: torch.all(~x, dim=0), rare(*X)),
    sample("count_nonzero", lambda x: torch.count_nonzero(x, dim=0), numbers(*X)),
    sample("max", torch.max, X),
    sample("max", lambda x: torch.max(x, 1), X),
    sample("min", lambda x: torch.min(x, 0, keepdim=True), X),
    sample("max", torch.max, X, X),
    sample("norm", lambda x: x.norm(dim=-1), X),
    sample("norm", torch.norm, X),
    sample("vector_norm", torch.linalg.vector_norm, X),
    sample("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, dim=0), X),
    sample("matrix_norm", lambda x: torch.linalg.matrix_norm(x), Z),
    sample("softmax", lambda x: x.softmax(0), X),
    sample("_softmax", lambda x: torch.ops.aten._softmax(x, 0, False), X),
    sample("_log_softmax", lambda x: torch.ops.aten._log_softmax(x, -1, False), X),
    sample("log_softmax", lambda x: x.log_softmax(1), X),
    sample("softmin", lambda x: torch.nn.functional.softmin(x, 1), X),
    *(
        sample(name, partial(getattr(torch, name), dim=1), positive(*X))
        for name in ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "argsort", "sort"]
    ),
    sample("msort", torch.msort, X),
    sample("topk", lambda x: torch.topk(x, 4, 0), X),
    sample("diff", torch.diff, X),
    sample("trapezoid", torch.trapezoid, X),
    sample("trapz", torch.trapz, X),
    sample("norm", lambda x: torch.linalg.norm(x, dim=0), X),
    sample("trace", torch.trace, X),
    sample("histc", lambda x: torch.histc(x, 5, -1, 1), real(12, wants=False)),
    sample("cov", torch.cov, X),
    sample("corrcoef", torch.corrcoef, X),
    sample("bucketize", torch.bucketize, real(*X, wants=False), rising(6)),
    sample("searchsorted", torch.searchsorted, rising(12, 6), real(12, 4, wants=False)),
    sample("isin", torch.isin, numbers(12), numbers(6)),
    sample("renorm", lambda x: torch.renorm(x, 2, 0, 1.0), X),
    sample("one_hot", lambda x: torch.nn.functional.one_hot(x, 5), places(5, 4, 6)),
]
