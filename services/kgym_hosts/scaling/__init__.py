"""When hosts come and go: decisions without I/O, their simulation, and the loop around them."""
