"""The tools behind scripts/: they run the programs, read what was measured, judge and show it."""
