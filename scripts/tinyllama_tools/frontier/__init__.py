"""The out-of-memory frontier: the largest batch for each sequence length, and the reverse."""
