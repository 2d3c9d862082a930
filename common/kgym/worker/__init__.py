"""Workers: how they get steps, run them, and tell how they end."""
