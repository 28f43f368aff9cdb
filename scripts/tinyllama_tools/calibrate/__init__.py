"""How often the comparison errs: recordings, resampling, and the other tools beside it."""
