"""What runs within an environment; it imports nothing but the standard library."""
