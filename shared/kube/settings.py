"""Where the cluster is, how often it may be asked, and how patient to be with it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shared.runtime.config import Common

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class KubeSettings(Common, frozen=True, kw_only=True):
    """The cluster: a URL (the local stand-in, a proxy), else a kubeconfig file, else the default
    one or our own pod.
    """

    kube_url: str = ""
    kube_token_file: str = ""  # file with the bearer token for kube_url; empty: it asks for none
    kubeconfig: str = ""
    kube_rate: Positive = (
        20.0  # requests a second at most; with the next one: see shared/kube/limiter.py
    )
    kube_burst: Count = 20  # of them at once
    kube_timeout_s: Positive = 30.0  # one request; a watch, beyond its own time
    kube_retry_s: Positive = (
        0.5  # about the first wait after trouble; doubles up to kube_retry_max_s
    )
    kube_retry_max_s: Positive = 15.0
    kube_watch_s: Count = 300  # a watch is begun again after half of this to all of it
    kube_page: Count = (
        1000  # objects in one page of a list; 150,000 pods take 150 requests, 8 s at kube_rate
    )
    kube_report_s: Positive = 60.0  # what was asked is logged this often
