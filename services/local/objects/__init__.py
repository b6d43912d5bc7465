"""What a Kubernetes object is: kinds, names, quantities, selectors, patches, defaults. All of it
pure.
"""
