"""The benchmark at work: bugs are fetched and validated, agents run on them and are judged."""
