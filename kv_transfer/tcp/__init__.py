"""Targets across the network, over plain sockets. See `transport` for the way of a write."""
