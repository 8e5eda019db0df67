"""Texts: prompts of chats, streamed text, tables in HTML."""
