"""The paths of the monitor, by subject."""
