"""Language models judge whether patches are equivalent to the developers'."""
