"""Reads the result files of both programs, and says in words what is wrong with a bad one."""
