"""Patches on a kernel tree: what they change, computed where hostile ones do no harm."""
