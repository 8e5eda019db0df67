"""Reports of an optimization: for the terminal, as CSV, and as a page with charts."""

from naiad.tools.optimize.report.html import write_html
from naiad.tools.optimize.report.tables import text_table, write_csv

__all__ = ["text_table", "write_csv", "write_html"]
