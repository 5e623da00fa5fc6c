"""Authentication for the REST API and the page: tokens, sessions, the audit log."""
