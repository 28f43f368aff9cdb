"""Makes of this folder a program of its own among those that scripts/test runs two at a time."""
