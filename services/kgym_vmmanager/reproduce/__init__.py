"""The `reproduce` step."""
