"""What measurements have in common: rows, intervals, comparisons, charts and pages."""
