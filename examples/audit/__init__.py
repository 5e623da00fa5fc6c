"""Audits by Airflow, Kubernetes, YARN and cron, and a notebook."""
