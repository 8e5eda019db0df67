"""Asyncio transports around wire, router and routes."""
