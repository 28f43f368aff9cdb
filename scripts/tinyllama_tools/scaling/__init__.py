"""Data-parallel scaling: starts local ranks, reads what they measured, projects it further."""
