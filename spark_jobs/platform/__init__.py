"""What all jobs share: session, tables, packaging, exit codes."""
