"""Memory that clients share with the server: registered regions, and how they are read and written safely."""
