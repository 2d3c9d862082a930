"""Which step a worker gets, for how long it has it, and what follows from its end."""
