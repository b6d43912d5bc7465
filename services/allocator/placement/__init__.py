"""The placement of tasks on nodes, and the free capacity. Law: never more than a node has free."""
