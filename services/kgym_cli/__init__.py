"""The command line, and the platforms that it starts on this machine."""
