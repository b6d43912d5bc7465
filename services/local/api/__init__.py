"""The API server, over HTTP: the paths and verbs that Weir, the official clients and kubectl use.

server.py     routes, access, errors; metrics.k8s.io and /debug/cpu-seconds
request.py    path, query and body of a request, decoded and checked
handlers.py   get, list, create, replace, patch, delete; the subresources
watch.py      watch
discovery.py  API groups and OpenAPI        (pure)
tables.py     the columns of `kubectl get`  (pure)
"""
