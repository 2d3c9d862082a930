"""Bisection: which commit of a history brought a bug, or fixed it."""
