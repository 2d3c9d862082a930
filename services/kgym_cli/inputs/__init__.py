"""What commands read: files, and values of options."""
