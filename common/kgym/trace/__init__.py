"""Traces: records of the functions that a kernel entered before it crashed. Pure."""
