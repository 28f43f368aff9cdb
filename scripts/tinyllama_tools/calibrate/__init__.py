"""How often the comparison errs: recordings and resampling."""
