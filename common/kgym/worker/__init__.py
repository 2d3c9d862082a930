"""Workers: they claim steps, run them, and report the results."""
