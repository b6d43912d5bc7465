"""The forms in which a client may want objects: as they are, as a table, or their metadata
alone.
"""

from services.local.api.tables import META, partial, table
from services.local.objects.bodies import Body, meta
from services.local.objects.kinds import Kind

TABLE, PARTIAL = "Table", "PartialObjectMetadata"


def form_of(accept: str) -> str:
    """Empty: as they are."""
    return next((form for form in (TABLE, PARTIAL) if f"as={form}" in accept), "")


def one(form: str, kind: Kind, body: Body, now_s: float) -> Body:
    if form == TABLE:
        return table(kind, [body], now_s, {"resourceVersion": meta(body).get("resourceVersion")})
    return partial(body) if form == PARTIAL else body


def many(form: str, kind: Kind, bodies: list[Body], now_s: float, list_meta: Body) -> Body:
    """A list in another form than its objects have."""
    if form == TABLE:
        return table(kind, bodies, now_s, list_meta)
    return {
        "kind": f"{PARTIAL}List",
        "apiVersion": META,
        "metadata": list_meta,
        "items": [partial(b) for b in bodies],
    }
