"""Who may use the REST API and the page: tokens, sessions, the audit log."""
