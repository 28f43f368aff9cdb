"""Regression comparison: two builds interleaved, stored results, and what is said of them."""
