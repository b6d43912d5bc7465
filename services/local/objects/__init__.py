"""What a Kubernetes object is: kinds, names, quantities, selectors, patches, defaults. Everything here is pure."""
