"""What is known of a bug, and what runs of it prove. Pure, but for reading bundles."""
