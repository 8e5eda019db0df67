"""Work that would block the event loop: in slices on the loop, or on threads."""
