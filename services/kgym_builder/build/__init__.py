"""The `build` step."""
