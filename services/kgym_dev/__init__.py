"""For development: servers of one's own, demo data. In the checkout only; not in the wheel."""
