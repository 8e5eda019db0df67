"""The dashboard: its page for browsers, and the live stream that the page and `naiad top` read."""
