"""Records to show and to write."""

from __future__ import annotations

from meshwright.train.show.record import StepRecord


def record(step: int, *, loss: float = 2.0, validation_loss: float | None = None) -> StepRecord:
    return StepRecord(
        step=step,
        loss=loss,
        grad_norm=0.5,
        rate=3e-4,
        tokens_per_second=12_345.0,
        memory_gib=1.5,
        validation_loss=validation_loss,
        seconds=2.0 * step,
        tokens=1000 * step,
    )
