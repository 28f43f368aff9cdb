"""Results over time: an append-only store, its change points and its pages."""
