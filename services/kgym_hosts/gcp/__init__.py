"""A deployment on Google Cloud: what it is made of, how it comes, is looked at, and goes."""
