"""kGymSuite scheduler service."""
