"""scripts/study --grid: every component over batch x sequence x size, in rounds that resume."""
