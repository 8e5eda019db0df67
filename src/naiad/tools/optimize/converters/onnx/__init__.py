"""ONNX files: exports from other formats, changes of the graph, quantisation."""
