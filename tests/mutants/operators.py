"""All kinds of faults."""

from tests.mutants import operators_collective, operators_gradient, operators_number
from tests.mutants.operator import NO_MEANING, OPERATORS

SOURCES = (operators_collective, operators_gradient, operators_number)
"""Where they stand; each adds its own when it is imported."""

__all__ = ["NO_MEANING", "OPERATORS", "SOURCES"]
