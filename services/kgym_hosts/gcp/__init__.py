"""A deployment on Google Cloud: its parts, and how they are made, shown and removed."""
