"""`config.pbtxt`, protobuf text format: read with the place of every mistake, and written."""
