"""Language models, and what stands in for them: tapes of earlier runs, and scripts."""
