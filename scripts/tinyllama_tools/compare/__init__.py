"""Regression comparison: two builds in turn, stored results, and what is said of them."""
