"""Judges whether times differ: pure statistics, without files, processes or words for people."""
