"""Tools that call Python functions: schemas, arguments, results."""
