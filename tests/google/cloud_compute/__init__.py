"""A server that answers as Google Compute Engine does, on loopback: for tests, benches, and trials.

Its instances are real VMs: each an emulated machine that boots its image's disk, with a serial
port, a metadata server, and an address of its own on this machine's loopback.
"""
