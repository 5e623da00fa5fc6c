"""Where an audit can run: Airflow, Kubernetes, YARN, cron, a notebook."""
