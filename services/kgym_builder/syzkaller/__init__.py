"""Syzkaller's programs, built from its source."""
