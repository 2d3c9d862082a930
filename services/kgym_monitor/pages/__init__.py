"""What pages show: words, timelines, and the templates that they are made of."""
