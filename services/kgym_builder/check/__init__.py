"""The `check` step."""
