"""Jobs: how they are followed, fetched and printed."""
