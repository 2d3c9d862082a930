"""A server that answers as Google Cloud Storage does, on loopback: for tests, benches, and trials.

It has what the service promises and others that imitate it leave out: preconditions, also at the
end of a resumable upload; checksums that are compared; pages; tokens of rewrites; signatures.
"""
