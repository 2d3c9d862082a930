"""The REST interface, and what stands before it."""
