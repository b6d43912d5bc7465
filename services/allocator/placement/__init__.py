"""Which task goes on which node, and what there is room for. Law: never more than a node has
free.
"""
