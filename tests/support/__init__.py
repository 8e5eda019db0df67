"""Pieces that tests share: fake loops, scripted backends, model builders."""
