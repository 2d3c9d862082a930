"""kGymSuite's own REST interface, for its clients, mapped to this platform's jobs."""
