"""The tracer: from dumps of crashed kernels to minimal traces."""
