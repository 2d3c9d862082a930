"""The benchmark: datasets of bugs, what agents made of them, and the figures of that."""
