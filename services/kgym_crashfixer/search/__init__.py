"""The search for a fix. Pure: it asks for work and receives results."""
