"""The judge: language models vote on whether patches are equivalent to the developers'."""
