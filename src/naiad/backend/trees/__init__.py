"""The trees backend, Triton's `fil`: gradient-boosted trees and random forests."""
