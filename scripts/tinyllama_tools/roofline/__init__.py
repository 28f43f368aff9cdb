"""What a machine allows at best: rooflines, speed of light of a step, and where time is lost."""
