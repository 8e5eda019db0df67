"""The demonstration `chat`: questions about naiad, answered from its documentation by a language model."""
