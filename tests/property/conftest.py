"""Settings of these tests."""

from support.unlimited_turns import unlimited_turns

__all__ = ["unlimited_turns"]
