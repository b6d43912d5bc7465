"""The runtime of a service: settings, logs, metrics, health, leadership, start and stop."""
