"""Language models, and tapes of earlier runs in their place."""
