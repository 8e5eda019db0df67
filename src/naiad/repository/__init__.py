"""Model repositories: stores, versions, lifecycle states."""
