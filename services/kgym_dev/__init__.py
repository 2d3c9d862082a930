"""For development: servers of one's own. In the checkout only; the wheel leaves it out."""
