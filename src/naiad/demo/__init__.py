"""The demonstration: real trained models, served and asked over both protocols."""
