package prog

var GitRevision = "unknown"
