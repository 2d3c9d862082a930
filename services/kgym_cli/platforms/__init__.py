"""Platforms: how a command finds, starts and assembles one."""
