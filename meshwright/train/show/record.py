"""What is known of a step, and of a whole run: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExpertLoad:
    """How evenly the tokens of a step went to experts, over all ranks."""

    max_over_mean: float
    """tokens of the busiest expert over the mean of its layer, in the layer where that is most"""
    idle: int
    """experts without a token, in all layers"""
    dropped: int
    """choices of routers that went to no expert, in all layers"""
    tokens: Sequence[Sequence[int]]
    """of each expert, by layer"""

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], chosen: int) -> ExpertLoad:
        """chosen: choices that the tokens of a layer made, in all."""
        return cls(
            max_over_mean=max(max(layer) * len(layer) / max(1, sum(layer)) for layer in tokens),
            idle=sum(count == 0 for layer in tokens for count in layer),
            dropped=sum(chosen - sum(layer) for layer in tokens),
            tokens=tokens,
        )


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step, over all ranks."""

    step: int
    """1 for the first"""
    loss: float
    """mean over the tokens of the step, in nats"""
    grad_norm: float
    """total norm of the gradient before it is scaled down"""
    rate: float
    """learning rate of the step"""
    tokens_per_second: float
    """of all ranks together"""
    memory_gib: float
    """largest memory that one rank has held so far"""
    validation_loss: float | None
    """mean over the held-out tokens, in nats; None where the step was not followed by a validation"""
    seconds: float
    """since training began"""
    tokens: int
    """trained on since training began"""
    experts: ExpertLoad | None = None
    """None where the model has no experts"""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run from its first record to its last."""

    loss: tuple[float, float]
    """of the first step and of the last"""
    validation_loss: tuple[float, float] | None
    """of the first validation and of the last; None where there was none"""
    tokens: int
    """trained on"""
    seconds: float
    """spent"""

    @classmethod
    def of(cls, records: Sequence[StepRecord]) -> Summary:
        """The summary of one record or more."""
        validations = [record.validation_loss for record in records if record.validation_loss is not None]
        first, last = records[0], records[-1]
        return cls(
            loss=(first.loss, last.loss),
            validation_loss=(validations[0], validations[-1]) if validations else None,
            tokens=last.tokens,
            seconds=last.seconds,
        )
