"""All right programs, and what finds them."""

from tests.mutants import (
    programs_experts,
    programs_layers,
    programs_means,
    programs_moving,
    programs_steps,
    programs_training,
)
from tests.mutants.program import PROGRAMS

SOURCES = (programs_experts, programs_layers, programs_means, programs_moving, programs_steps, programs_training)
"""Where they stand; each adds its own when it is imported."""

__all__ = ["PROGRAMS", "SOURCES"]
