"""The search for a fix, pure: it asks for work and is told results; it does nothing itself."""
