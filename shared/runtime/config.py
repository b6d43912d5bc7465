"""Settings: declared, typed, complete. An unknown one stops the program.

A service's settings are a frozen struct. Its fields come from the environment:
`WEIR_<SERVICE>_<FIELD>` for its own, and `WEIR_<FIELD>` for those of `Common`, which every service
has, and for a service's `UNPREFIXED` fields. Every timer is a setting; all are logged at start. A
mapping is written as JSON, a list with commas.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_origin

import msgspec
from msgspec import Meta

from shared.messages import Namespace, Port

ALIKE = 0.9  # similarity from which an unknown name counts as misspelt


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every service. `nats_credentials`, `nats_ca`: files, or their text (see
    `connect_client`). A program fills the fields in `FILLED_IN` itself; they are no settings.

    The fields in `UNPREFIXED` come from `WEIR_<FIELD>`, without the name of the service, though only
    this service has them. Put a new setting here if the launcher passes it to trainers: a trainer of
    an older version stops at an unknown `WEIR_TRAINER_...`, and ignores other names.
    """

    FILLED_IN: ClassVar[frozenset[str]] = frozenset()
    UNPREFIXED: ClassVar[frozenset[str]] = frozenset()

    nats_url: str = "nats://127.0.0.1:4222"
    nats_credentials: str = ""
    nats_ca: str = ""
    log_level: str = "info"
    log_json: bool | None = None
    drain_s: float = 5.0
    lease_s: Annotated[float, msgspec.Meta(ge=0)] = (
        10.0  # the lease of the leader; 0: there are no other replicas
    )
    metrics_port: Port = 0  # serves metrics and health on all interfaces; 0: nowhere
    begun_again: str = ""  # how the last process ended, if the supervisor sets it
    job_namespaces: tuple[Namespace, ...] = ()  # namespaces in which jobs may run; empty: all


C = TypeVar("C", bound=Common)


class BadSettings(ValueError):
    """The wrong settings, one in each line."""


def load_settings(kind: type[C], service: str, environ: Mapping[str, str]) -> C:
    """Read the settings of a service. Raises `BadSettings` with all unknown or missing names and
    wrong values.
    """
    own = f"WEIR_{service.upper()}_"
    unprefixed = {*Common.__struct_fields__, *kind.UNPREFIXED}
    fields = [field for field in kind.__struct_fields__ if field not in kind.FILLED_IN]
    known = {_name(field, own, unprefixed): field for field in fields}
    values, wrong = {}, []
    for name, text in environ.items():
        if name not in known:
            wrong += _misspelt_setting_errors(name, own, known)
            continue
        field = known[name]
        try:
            values[field] = _convert(text, kind, field)
        except msgspec.DecodeError as error:
            wrong += [f"{name}={text!r}: {reason}" for reason in str(error).splitlines()]
    wrong += _missing(kind, known, environ)
    if wrong:
        raise BadSettings("\n".join(wrong))
    return kind(**values)


def shown_settings(settings: Common) -> dict[str, Any]:
    """Return the settings by field, for the log."""
    fields = settings.__struct_fields__
    return {field: getattr(settings, field) for field in fields if field not in settings.FILLED_IN}


def _name(field: str, own: str, unprefixed: set[str]) -> str:
    return f"WEIR_{field.upper()}" if field in unprefixed else own + field.upper()


def _misspelt_setting_errors(name: str, own: str, known: Mapping[str, str]) -> list[str]:
    """Return an error if an unknown name has the service's prefix or resembles a known name.

    The settings of other services are ignored.
    """
    meant = get_close_matches(name, known, n=1, cutoff=ALIKE)
    if not name.startswith(own) and not meant:
        return []
    hint = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(sorted(known))}"
    return [f"{name}: no such setting; {hint}"]


def _missing(kind: type[C], known: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    required = {f.name for f in msgspec.structs.fields(kind) if f.required}
    return [
        f"{name}: not set"
        for name, field in known.items()
        if field in required and name not in environ
    ]


def _convert(text: str, kind: type[C], field: str) -> Any:
    wanted = {f.name: f.type for f in msgspec.structs.fields(kind)}[field]
    if get_origin(wanted) is dict:
        return _mapping(msgspec.json.decode(text), wanted)
    if get_origin(wanted) is tuple:
        return msgspec.convert(
            [word.strip() for word in text.split(",") if word.strip()], wanted, strict=False
        )
    return msgspec.convert(text, wanted, strict=False)


def _mapping(raw: Any, wanted: Any) -> Any:
    """Return a mapping from JSON. Raises a `ValidationError` with a line for each invalid entry."""
    reasons = []
    for key, value in raw.items() if isinstance(raw, dict) else ():
        try:
            msgspec.convert({key: value}, wanted)
        except msgspec.ValidationError as error:
            reasons.append(f"{key}: {str(error).replace('`$[...]', '`$')}")
    if reasons:
        raise msgspec.ValidationError("\n".join(reasons))
    return msgspec.convert(raw, wanted)


Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class KubeSettings(Common, frozen=True, kw_only=True):
    """The cluster: a URL (the local stand-in, a proxy), else a kubeconfig file, else the default
    one or our own pod.
    """

    kube_url: str = ""
    kube_token_file: str = ""  # file with the bearer token for kube_url; empty: no token
    kubeconfig: str = ""
    kube_rate: Positive = 20.0  # most requests a second, with kube_burst: see shared/kube/client.py
    kube_burst: Count = 20  # most requests at once
    kube_timeout_s: Positive = 30.0  # one request; of a watch, in addition to its duration
    kube_retry_s: Positive = (
        0.5  # about the first wait after a failure; doubles up to kube_retry_max_s
    )
    kube_retry_max_s: Positive = 15.0
    kube_watch_s: Count = 300  # a watch is renewed after half of this to all of it
    kube_page: Count = (
        1000  # objects in one page of a list; 150,000 pods take 150 requests, 8 s at kube_rate
    )
    kube_report_s: Positive = 60.0  # interval of the log lines about requests
