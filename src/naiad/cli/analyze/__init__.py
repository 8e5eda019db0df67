"""`naiad analyze`, also with Model Analyzer's commands `profile`, `analyze` and `report`."""
