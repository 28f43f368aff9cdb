"""Laws of time and memory over batch and sequence: fits, intervals, exponents, held-out checks."""

from tinyllama_tools.laws.exponents import Estimate, Exponents, fit_exponents
from tinyllama_tools.laws.fit import fit_memory_law, fit_time_law
from tinyllama_tools.laws.held_out import HeldOut, check_held_out
from tinyllama_tools.laws.law import Coefficient, Law
from tinyllama_tools.laws.points import GridPoint, LawRefusedError

__all__ = [
    "Coefficient",
    "Estimate",
    "Exponents",
    "GridPoint",
    "HeldOut",
    "Law",
    "LawRefusedError",
    "check_held_out",
    "fit_exponents",
    "fit_memory_law",
    "fit_time_law",
]
