"""Which nodes of a rejected candidate stay in higher precision, so that its answers are right."""

from naiad.tools.optimize.sensitivity.mixing import is_searchable, search

__all__ = ["is_searchable", "search"]
