"""The composition root: builds all parts, runs them and shuts them down in order."""
