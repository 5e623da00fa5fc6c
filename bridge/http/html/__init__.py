"""The page: the REST API's operations as HTML."""
