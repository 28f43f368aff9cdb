"""Tests of comparisons and their error rates; with it, scripts/test runs this folder too."""
