"""Sources made readable over REST."""
