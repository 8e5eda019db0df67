"""naiad in other programs: each one's plug-in."""
