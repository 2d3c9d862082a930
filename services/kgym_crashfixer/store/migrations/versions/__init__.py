"""One module for each change, in their order."""
