"""This machine: its programs, the sandboxes they run in, its folders, what it has."""
