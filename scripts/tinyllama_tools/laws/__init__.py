"""Laws of time and memory over batch and sequence: fits, intervals, exponents, held-out checks."""

from tinyllama_tools.laws.exponents import Estimate, Exponents, fit_exponents
from tinyllama_tools.laws.held_out import HeldOut, check_held_out
from tinyllama_tools.laws.law import Coefficient, Law, RangeKind
from tinyllama_tools.laws.memory_fit import fit_memory_law
from tinyllama_tools.laws.points import GridPoint, LawRefusedError
from tinyllama_tools.laws.time_fit import fit_time_law

__all__ = [
    "Coefficient",
    "Estimate",
    "Exponents",
    "GridPoint",
    "HeldOut",
    "Law",
    "LawRefusedError",
    "RangeKind",
    "check_held_out",
    "fit_exponents",
    "fit_memory_law",
    "fit_time_law",
]
