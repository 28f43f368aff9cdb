"""One document about a machine: what was measured, what bounds it, how it scales."""
