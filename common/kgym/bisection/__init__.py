"""Bisection: the commit of a history that introduced or fixed a bug."""
