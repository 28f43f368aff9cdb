"""Predicts training steps that were not run, with rates calibrated on what was run."""
