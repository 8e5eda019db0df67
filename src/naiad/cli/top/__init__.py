"""`naiad top`: what servers and their models do now, in the terminal."""
