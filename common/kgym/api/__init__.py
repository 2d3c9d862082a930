"""What is asked of the platform and what it answers: the models of the REST interface. Pure."""
