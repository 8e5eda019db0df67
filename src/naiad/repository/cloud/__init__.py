"""Model repositories in object stores: their URLs, credentials, and local copies."""
