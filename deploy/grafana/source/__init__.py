"""The dashboards, as values, and how they become what Grafana takes."""
