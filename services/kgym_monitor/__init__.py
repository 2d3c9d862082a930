"""The web monitor: pages that show jobs, their steps and workers as they change."""
