"""Interfaces to what is around the pure rooms: loop, timers, other models."""
