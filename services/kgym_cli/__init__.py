"""kGymSuite cli service."""
