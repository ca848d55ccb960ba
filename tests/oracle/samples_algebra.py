"""Samples of linear algebra and Fourier transforms."""

from __future__ import annotations

from functools import partial

import torch

from tests.oracle.sample import Sample, cplx, definite, real, sample, triangular

BATCH, TALL = (4, 6, 6), (4, 6, 4)

LINEAR_ALGEBRA: list[Sample] = [
    *(sample(name, getattr(torch.linalg, name), definite(*BATCH)) for name in ["inv", "det", "slogdet", "cholesky"]),
    sample("logdet", torch.logdet, definite(*BATCH)),
    sample("inverse", torch.inverse, definite(*BATCH)),
    sample("matrix_exp", torch.linalg.matrix_exp, BATCH),
    sample("matrix_power", lambda x: torch.linalg.matrix_power(x, 2), BATCH),
    sample("svdvals", torch.linalg.svdvals, BATCH),
    sample("svd", lambda x: torch.linalg.svd(x, full_matrices=False), TALL),
    sample("eigvalsh", torch.linalg.eigvalsh, definite(*BATCH)),
    sample("eigh", torch.linalg.eigh, definite(*BATCH)),
    sample("qr", torch.linalg.qr, TALL),
    *(sample(name, getattr(torch, name), TALL) for name in ("pinverse",)),
    sample("pinv", torch.linalg.pinv, TALL),
    sample("solve", torch.linalg.solve, definite(*BATCH), TALL),
    sample("solve_triangular", lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), triangular(*BATCH), TALL),
    sample("cholesky_solve", torch.cholesky_solve, TALL, triangular(*BATCH)),
]

LINES = (4, 12, 6)

SPECTRA: list[Sample] = [
    *(sample(name, partial(getattr(torch.fft, name), dim=1), real(*LINES)) for name in ("fft", "rfft", "ihfft")),
    *(sample(name, partial(getattr(torch.fft, name), dim=1), cplx(*LINES)) for name in ("ifft", "irfft", "hfft")),
    *(sample(name, getattr(torch.fft, name), real(*LINES)) for name in ("fft2", "rfft2", "fftshift")),
    *(sample(name, getattr(torch.fft, name), cplx(*LINES)) for name in ("ifft2", "irfft2")),
    *(sample(name, partial(getattr(torch.fft, name), dim=(0, 2)), real(*LINES)) for name in ("fftn", "rfftn")),
    *(sample(name, partial(getattr(torch.fft, name), dim=(0, 2)), cplx(*LINES)) for name in ("ifftn", "irfftn")),
    sample("ifftshift", lambda x: torch.fft.ifftshift(x, dim=1), real(*LINES)),
]
