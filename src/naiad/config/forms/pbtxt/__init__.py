"""`config.pbtxt`, protobuf text format: reading, with the position of every error, and writing."""
