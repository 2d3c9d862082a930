"""The tracer: memory dumps of crashed kernels to minimal traces."""
