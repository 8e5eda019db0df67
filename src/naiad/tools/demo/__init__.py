"""The demonstration: real trained models, served over both protocols."""
