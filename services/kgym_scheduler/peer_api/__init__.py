"""kGymSuite's own REST surface, for its clients: mapped to this platform's jobs."""
