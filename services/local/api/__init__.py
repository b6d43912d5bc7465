"""The API server: the paths, verbs and answers that Weir, the official clients and kubectl use,
over HTTP.

paths.py         a path -> what it is about                       (pure)
discovery.py     what there is, for clients that ask first        (pure)
tables.py        the columns of `kubectl get`                     (pure)
options.py       the query of a request and the options of a deletion
reading.py       get and list          watching.py      watch
writing.py       create, replace, patch, delete
subresources.py  status, binding, eviction, resize, log
metrics.py       metrics.k8s.io and /debug/cpu-seconds
server.py        the doors: who may enter, who answers, how a refusal is said
"""
