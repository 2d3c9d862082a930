"""The models of the REST interface: requests and answers. Pure."""
