"""The paper's claims, one module an item: a table in, findings out."""
