"""What shows that a guest could have told of the bug, and that the work was done."""
