"""Code that runs inside an environment; it imports only the standard library."""
