"""Whether a patched kernel can still tell of the bug, as far as source, config and objects show."""
