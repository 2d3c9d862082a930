"""Traces: what a kernel executed before it crashed, as records of function entries. Pure."""
