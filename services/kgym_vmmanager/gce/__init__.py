"""VMs on Google Compute Engine: a second provider. Only this package imports its library."""
