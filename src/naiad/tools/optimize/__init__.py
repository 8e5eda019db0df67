"""`naiad optimize`: convert a model, prove that it answers as before, measure, and write what serves best."""
