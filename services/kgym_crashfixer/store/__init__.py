"""What runs leave in the database: their events, results, model calls, nodes and jobs."""
