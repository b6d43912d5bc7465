"""What every service needs to run: settings, logs, metrics, health, leadership, the life of a process."""
