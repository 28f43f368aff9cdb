"""Tests of laws, studies, predictions and frontiers; with it, scripts/test runs this folder too."""
