"""The commands, one noun a file."""
