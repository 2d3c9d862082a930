"""The memory of a guest that crashed or hung, saved."""
