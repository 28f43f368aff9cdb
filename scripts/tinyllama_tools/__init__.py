"""What scripts/ and .ci/ need of Python: set-up on distributions with apt, and the test runner."""
