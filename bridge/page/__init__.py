"""The HTTP server: probes, metrics, the REST API and the page."""
