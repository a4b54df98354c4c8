"""OpenAPI 3.1 of the JSON twins, made from the pages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.console.page import Audience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relay.console.page import Page

_TABLE = {
    "sort": "column to sort by; `-` in front: descending",
    "find": "only rows with this text",
    "page": "which page of the table, from 1",
}


def described(pages: Sequence[Page], at: str, version: object) -> dict[str, object]:
    """`at`: the path of the console; `version`: of the relay."""
    paths = {}
    for page in pages:
        for ending in (".json", ".csv") if page.has_table else (".json",):
            paths[f"{at}/{page.name}{ending}"] = {"get": _operation(page, ending)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rookery console", "version": version},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "nip98": {
                    "type": "http",
                    "scheme": "nostr",
                    "description": "NIP-98: base64 of a signed kind 27235 for this URL and method",
                },
                "session": {"type": "apiKey", "in": "cookie", "name": "rookery"},
            }
        },
    }


def _operation(page: Page, ending: str) -> Mapping[str, object]:
    params = {**page.params, **(_TABLE if page.has_table else {})}
    kind = "text/csv" if ending == ".csv" else "application/json"
    signed: list[Mapping[str, list[str]]] = [{"nip98": []}, {"session": []}]
    return {
        "operationId": f"{page.name}{ending}",
        "summary": page.summary,
        "parameters": [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in params.items()
        ],
        "security": signed if page.audience is Audience.OWNER else [{}, *signed],
        "responses": {
            "200": {"description": page.title, "content": {kind: {}}},
            "401": {"description": "sign in"},
            "403": {"description": "not for this key"},
            "404": {"description": "nothing of this name, or nothing this key may read"},
            "503": {"description": "took too long"},
        },
    }
