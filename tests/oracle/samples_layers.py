"""Samples of norms, losses, convolutions, pooling and images."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from tests.oracle.sample import Sample, chances, places, positive, real, sample, unit

X, SEQ, IMG = (12, 12), (2, 12, 12), (4, 12, 8, 8)
REDUCED = ("mean", "sum", "none")
PAIRED = ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"]


def layered(x, w, b):
    return torch.native_layer_norm(x, [12], w, b, 1e-5)


def directed(v, g, dim):
    """torch reads past the end of lengths that are fewer than the directions: that they fit is asked for first."""
    others = tuple(n for n in range(v.dim()) if n != dim)
    torch.broadcast_tensors(v.sum(others), g.flatten())
    return torch._weight_norm(v, g, dim)


NORMS: list[Sample] = [
    sample("layer_norm", lambda x, w, b: F.layer_norm(x, (12,), w, b), X, (12,), (12,)),
    sample("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]), SEQ),
    sample("native_layer_norm", layered, X, (12,), (12,), mixed=False),
    sample("native_layer_norm", lambda x: torch.native_layer_norm(x, x.shape[1:], None, None, 1e-5), SEQ),
    sample("_weight_norm", partial(directed, dim=0), X, (12, 1)),
    sample("_weight_norm", partial(directed, dim=2), SEQ, (1, 1, 12)),
    sample("rms_norm", lambda x, w: F.rms_norm(x, (12,), w), X, (12,)),
    sample("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:]), X),
    sample("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), (4, 12, 4), (12,), (12,)),
    sample("group_norm", lambda x: F.group_norm(x, 3), (4, 12, 4)),
    sample("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (4, 12, 6), (12,), (12,)),
    sample("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 12, 6), (12,), (12,)),
    sample(
        "batch_norm",
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        (4, 12, 6),
        real(12, wants=False),
        positive(12, wants=False),
        (12,),
        (12,),
    ),
    sample("local_response_norm", lambda x: F.local_response_norm(x, 2), (4, 12, 6)),
]

LOSSES: list[Sample] = [
    *(
        sample("soft_margin_loss", lambda x, y, r=r: F.soft_margin_loss(x, y, reduction=r), X, real(*X, wants=False))
        for r in REDUCED
    ),
    *(sample(name, partial(getattr(F, name), reduction=r), X, X) for name in PAIRED for r in REDUCED),
    *(
        sample("cross_entropy", lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), X, places(12, 12))
        for r in REDUCED
    ),
    sample("cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction="sum"), SEQ, places(12, 2, 12)),
    sample(
        "cross_entropy", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction="sum"), X, places(12, 12)
    ),
    sample("cross_entropy", lambda x, t: F.cross_entropy(x, t, ignore_index=3), X, places(12, 12)),
    *(
        sample(
            "cross_entropy",
            lambda x, t, w, r=r: F.cross_entropy(x, t, w.detach(), reduction=r, label_smoothing=0.1),
            X,
            places(12, 12),
            positive(12),
        )
        for r in REDUCED
    ),
    *(sample("cross_entropy", lambda x, t, r=r: F.cross_entropy(x, t, reduction=r), X, chances(*X)) for r in REDUCED),
    *(sample("nll_loss", lambda x, t, r=r: F.nll_loss(x, t, reduction=r), X, places(12, 12)) for r in REDUCED),
    sample("nll_loss", lambda x, t, w: F.nll_loss(x, t, w.detach(), reduction="sum"), X, places(12, 12), positive(12)),
    *(
        sample("binary_cross_entropy", lambda x, t, r=r: F.binary_cross_entropy(x, t, reduction=r), unit(*X), unit(*X))
        for r in REDUCED
    ),
    *(
        sample(
            "binary_cross_entropy_with_logits",
            lambda x, t, r=r: F.binary_cross_entropy_with_logits(x, t, reduction=r),
            X,
            unit(*X),
        )
        for r in REDUCED
    ),
    sample(
        "binary_cross_entropy_with_logits",
        lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=p.detach(), reduction="sum"),
        X,
        unit(*X),
        positive(12, wants=False),
        positive(12, wants=False),
    ),
    *(sample("kl_div", lambda x, t, r=r: F.kl_div(x, t, reduction=r), X, unit(*X)) for r in (*REDUCED, "batchmean")),
    sample("gaussian_nll_loss", lambda x, t, v: F.gaussian_nll_loss(x, t, v, reduction="sum"), X, X, positive(*X)),
    sample("poisson_nll_loss", lambda x, t: F.poisson_nll_loss(x, t, reduction="sum"), X, X),
    sample(
        "hinge_embedding_loss",
        lambda x, t: F.hinge_embedding_loss(x, t.sign(), reduction="sum"),
        X,
        real(*X, wants=False),
    ),
    sample(
        "margin_ranking_loss",
        lambda x, y, t: F.margin_ranking_loss(x, y, t.sign(), reduction="sum"),
        (12,),
        (12,),
        real(12, wants=False),
    ),
    *(
        sample("triplet_margin_loss", lambda a, p, n, r=r: F.triplet_margin_loss(a, p, n, reduction=r), X, X, X)
        for r in REDUCED
    ),
    *(
        sample(
            "cosine_embedding_loss",
            lambda x, y, t, r=r: F.cosine_embedding_loss(x, y, t.sign(), reduction=r),
            X,
            X,
            real(12, wants=False),
        )
        for r in REDUCED
    ),
]

IMAGES: list[Sample] = [
    sample("conv1d", F.conv1d, (4, 12, 8), (12, 12, 3)),
    sample("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), (4, 12, 8), (12, 12, 3), (12,)),
    sample("conv1d", lambda x, w: F.conv1d(x, w, groups=x.shape[1]), (4, 12, 8), (12, 1, 3)),
    sample("conv1d", lambda x, w: F.conv1d(x, w, groups=x.shape[1]), (2, 6, 8), (12, 1, 3)),
    sample("conv2d", lambda x, w: F.conv2d(x, w, stride=2), (4, 12, 9, 9), (12, 12, 3, 3)),
    sample("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding="same"), (2, 4, 8, 8), (12, 4, 3, 3), (12,)),
    sample("conv2d", lambda x, w: F.conv2d(x, w, groups=x.shape[1] // 2), (2, 24, 4, 4), (12, 2, 2, 2)),
    sample("conv3d", F.conv3d, (2, 4, 4, 4, 4), (6, 4, 2, 2, 2)),
    sample("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, stride=2), (4, 12, 8), (12, 12, 3)),
    sample("conv_transpose2d", F.conv_transpose2d, (2, 6, 4, 4), (6, 12, 2, 2), (12,)),
    sample("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, groups=x.shape[1]), (2, 12, 4, 4), (12, 2, 2, 2)),
    sample("conv_transpose3d", F.conv_transpose3d, (2, 4, 4, 4, 4), (4, 6, 2, 2, 2)),
    *(
        sample(f"{kind}_pool{n}d", partial(getattr(F, f"{kind}_pool{n}d"), kernel_size=3, stride=1), (4, 12, *(8,) * n))
        for kind in ("max", "avg")
        for n in (1, 2, 3)
    ),
    *(
        sample(
            f"adaptive_{kind}_pool{n}d",
            partial(getattr(F, f"adaptive_{kind}_pool{n}d"), output_size=3),
            (4, 12, *(8,) * n),
        )
        for kind in ("max", "avg")
        for n in (1, 2, 3)
    ),
    sample("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (4, 12, 4, 4)),
    sample("lp_pool1d", lambda x: F.lp_pool1d(x, 2, 3, 1), (4, 12, 8)),
    sample("lp_pool3d", lambda x: F.lp_pool3d(x, 2, 3, 1), (4, 12, 8, 8, 8)),
    sample("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 3, 1), (4, 12, 8, 8)),
    *(
        sample("interpolate", lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), (4, 12, 4, 4))
        for mode in ("bilinear", "bicubic")
    ),
    *(
        sample("interpolate", lambda x, mode=mode: F.interpolate(x, size=(6, 6), mode=mode), (4, 12, 4, 4))
        for mode in ("nearest", "area")
    ),
    sample("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (2, 24, 4, 4)),
    sample("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (2, 12, 4, 4)),
    sample("channel_shuffle", lambda x: F.channel_shuffle(x, 3), (2, 12, 4, 4)),
    sample("im2col", lambda x: F.unfold(x, 3, padding=1), (2, 12, 4, 4)),
    sample("fold", lambda x: F.fold(x, (4, 4), 2, stride=2), (2, 24, 4)),
    sample("grid_sample", lambda x, g: F.grid_sample(x, g * 0.3, align_corners=False), (2, 12, 4, 4), (2, 4, 4, 2)),
    sample("affine_grid", lambda t: F.affine_grid(t, [t.shape[0], 1, 4, 4], align_corners=False), (12, 2, 3)),
]
