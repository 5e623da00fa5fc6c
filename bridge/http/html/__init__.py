"""The page: the operations of the REST API as HTML."""
